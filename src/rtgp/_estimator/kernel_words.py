"""Kernels in words: "rbf + periodic(day)", "matern32(lat, lon) * rbf(day) + linear".

    sum     = product, "+", product ...
    product = factor, "*", factor ...
    factor  = kernel, or kernel(columns), or (sum)

A kernel without columns takes all of them. A column whose name has a sign of this language stands in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rtgp.errors import SettingError

WORDS = ("rbf", "matern12", "matern32", "matern52", "rq", "periodic", "linear")


_DEEPEST = 100  # brackets in one text


@dataclass(frozen=True)
class Part:
    """One kernel. columns: their names, None: all. period: where that of a periodic kernel begins, in their unit."""

    word: str
    columns: tuple[str, ...] | None = None
    period: float | None = None


@dataclass(frozen=True)
class Together:
    """Several of them: a sum or a product."""

    sign: str  # "+" or "*"
    parts: tuple[Part | Together, ...]


Expression = Part | Together


def parse(text: str) -> Expression:
    """What a text says; a SettingError that says where it cannot be read."""
    reader = _Reader(text)
    found = reader.sum()
    if reader.peek():
        raise reader.error(f"expected '+', '*' or the end before {reader.peek()!r}")
    return found


def columns_for(columns: Sequence[str], names: Sequence[str], text: str) -> list[int]:
    """Places of columns among `names`. A name that is none of these stands for the levels of a category: "town" for
    "town=Rome", "town=Oslo", ..."""
    found: list[int] = []
    for column in columns:
        places = [names.index(column)] if column in names else _levels(column, names)
        if not places:
            known = ", ".join(map(repr, names[:20])) + (" ..." if len(names) > 20 else "")
            raise SettingError(
                f"The kernel {text!r:.80} names the input {column!r}, which is not among those that are used: {known}."
            )
        found += [place for place in places if place not in found]
    return found


def _levels(column: str, names: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(names) if name.startswith(f"{column}=")]


_TOKEN = re.compile(r"""\s*(?:(?P<quoted>"[^"]*"|'[^']*')|(?P<sign>[+*(),=])|(?P<word>[^\s+*(),='"][^+*(),='"]*))""")


class _Reader:
    """Recursive descent; one token ahead."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._tokens: list[tuple[str, str]] = []
        if text.count("(") > _DEEPEST:
            raise self.error(f"more than {_DEEPEST} brackets")
        place = 0
        while place < len(text.rstrip()):
            found = _TOKEN.match(text, place)
            if found is None:
                raise self.error(f"a quote is not closed at {text[place:].strip()[:20]!r}")
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind].strip()))
            place = found.end()

    def error(self, what: str) -> SettingError:
        return SettingError(
            f"The kernel {self._text!r:.80} cannot be read: {what}. Expected kernels out of {', '.join(WORDS)}, "
            "combined by + and *, each with its columns in brackets or for all of them: 'rbf + periodic(day)'."
        )

    def peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def take(self, sign: str) -> bool:
        """Whether the next token is this sign, which is then passed."""
        if self._at < len(self._tokens) and self._tokens[self._at] == ("sign", sign):
            self._at += 1
            return True
        return False

    def name(self) -> str:
        """A word, or one in quotes."""
        kind, value = self._tokens[self._at] if self._at < len(self._tokens) else ("", "the end")
        if kind not in ("word", "quoted"):
            raise self.error(f"expected a name before {value!r}")
        self._at += 1
        return value[1:-1] if kind == "quoted" else value

    def sum(self) -> Expression:
        return self._several("+", self.product)

    def product(self) -> Expression:
        return self._several("*", self.factor)

    def _several(self, sign: str, one: Callable[[], Expression]) -> Expression:
        parts = [one()]
        while self.take(sign):
            parts.append(one())
        return parts[0] if len(parts) == 1 else Together(sign, tuple(parts))

    def factor(self) -> Expression:
        if self.take("("):
            found = self.sum()
            if not self.take(")"):
                raise self.error("a bracket is not closed")
            return found
        word = self.name()
        if word not in WORDS:
            raise self.error(f"there is no kernel {word!r}")
        if not self.take("("):
            return Part(word)
        columns: list[str] = []
        period: float | None = None
        while True:
            name = self.name()
            if self.take("="):
                period = self._period(word, name)
            else:
                columns.append(name)
            if self.take(")"):
                break
            if not self.take(","):
                raise self.error(f"expected ',' or ')' after {name!r}")
        if len(set(columns)) < len(columns):
            raise self.error(f"{word} names a column twice")
        return Part(word, tuple(columns) or None, period)

    def _period(self, word: str, name: str) -> float:
        given = self.name()
        try:
            value = float(given)
        except ValueError:
            value = -1.0
        if word != "periodic" or name != "period" or not 0.0 < value < float("inf"):
            raise self.error(f"{name}={given} of {word}; only periodic(.., period=7) has a setting, a positive one")
        return value
