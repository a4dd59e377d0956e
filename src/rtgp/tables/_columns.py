"""What a column of a table is, as plain data: all that is needed to make the same numbers of it again."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from rtgp.errors import InputError

SEASONS = {"day": 1.0, "week": 7.0, "year": 365.2425}  # in days
OTHER = "other"
MISSING = "missing"


@dataclass(frozen=True)
class Number:
    """A column of numbers. fill: what a gap is taken for. gaps: whether there were some, which then have a column."""

    kind: ClassVar[str] = "number"
    name: str
    fill: float
    gaps: bool

    @property
    def outputs(self) -> tuple[str, ...]:
        """The numeric columns that are made of it."""
        return (self.name, *([f"{self.name} {MISSING}"] if self.gaps else []))


@dataclass(frozen=True)
class Date:
    """A column of dates: days since `origin`, and for each season where in it a date falls, as a point of a circle."""

    kind: ClassVar[str] = "date"
    name: str
    format: str
    origin: str
    seasons: tuple[str, ...]
    fill: float
    gaps: bool

    @property
    def outputs(self) -> tuple[str, ...]:
        """The numeric columns that are made of it."""
        circles = [f"{self.name} {season} {part}" for season in self.seasons for part in ("sin", "cos")]
        return (self.name, *([f"{self.name} {MISSING}"] if self.gaps else []), *circles)


@dataclass(frozen=True)
class Category:
    """A column of words: 0 or 1 for each of `levels`.

    other: whether rare and unknown words have a column of their own. gaps: whether there were some, which then have
    one too.
    """

    kind: ClassVar[str] = "category"
    name: str
    levels: tuple[str, ...]
    other: bool
    gaps: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The words that have a column."""
        return (*self.levels, *([OTHER_CELL] if self.other else []), *([MISSING_CELL] if self.gaps else []))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The numeric columns that are made of it."""
        extra = [OTHER] * self.other + [MISSING] * self.gaps
        return (*(f"{self.name}={level}" for level in self.levels), *(f"{self.name} {word}" for word in extra))


# What no word of a file is: a cell has no control characters of its own at its ends.
OTHER_CELL, MISSING_CELL = "\x00other", "\x00missing"
Column = Number | Date | Category
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in (Number, Date, Category)}


def describe(column: Column) -> dict[str, Any]:
    """As JSON data."""
    facts = dataclasses.asdict(column)
    return {"kind": column.kind, **{key: list(v) if isinstance(v, tuple) else v for key, v in facts.items()}}


def make(facts: Any) -> Column:
    """The column of a description, which is held against what a column can be."""
    cls = _KINDS.get(str(facts.get("kind"))) if isinstance(facts, dict) else None
    if cls is None:
        raise InputError(f"a column of no known kind: {facts!r:.80}.")
    wanted = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    given = {key: value for key, value in facts.items() if key != "kind"}
    if given.keys() != wanted.keys():
        raise InputError(f"a {cls.kind} described by {', '.join(map(str, given))!s:.120}.")
    found: Column = cls(**{key: _checked(key, wanted[key], value) for key, value in given.items()})
    if isinstance(found, Date) and not set(found.seasons) <= SEASONS.keys():
        raise InputError(f"seasons {found.seasons!r:.80}.")
    return found


def _checked(name: str, kind: str, value: Any) -> Any:
    if kind == "tuple[str, ...]" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if kind == "float":
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    elif type(value).__name__ == kind:
        return value
    raise InputError(f"{name} = {value!r:.40} of a column.")
