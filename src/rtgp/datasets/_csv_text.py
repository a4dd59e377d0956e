"""The text of a CSV file: opened with care, looked at, and read again."""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rtgp.datasets._limits import most_bytes

_LONGEST_LINE = 2**24  # characters of one of the first rows, which are looked at before the rest is
_MOST_BLANK = 10_000  # lines before them
_SAMPLE = 2**20  # characters that a dialect is found from, but for the last line


def open_text(path: Path, encoding: str = "utf-8-sig") -> TextIO:
    # utf-8-sig: spreadsheets write a byte-order mark, which would become part of the first column's name.
    if is_gzip(path):
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def most_text(path: Path) -> float:
    """Characters that are believed of a file."""
    return most_bytes(path) if is_gzip(path) else math.inf


def is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def names_of(first: list[str], named: bool, count: int) -> tuple[str, ...]:
    cells = [cell.strip() for cell in first] if named and len(first) == count else [""] * count
    return tuple(name or f"column {i}" for i, name in enumerate(cells, 1))


def ragged(message: str, skipped: int) -> str:
    """The parser counts lines from where it began; a reader counts them from the top of the file."""
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message)
    if not found:
        return f"not a readable CSV file ({message.strip():.200})."
    expected, line, saw = map(int, found.groups())
    return f"line {line + skipped} has {saw} columns where the first row of data has {expected}."


class TooMuchError(Exception):
    """More text than is believed."""


class Text:
    """The text of a file, of which the first rows are looked at and read again, and no more than `most` is taken."""

    def __init__(self, file: TextIO, most: float) -> None:
        self._file, self._left = file, most
        self._ahead: deque[str] = deque()  # lines taken from the file, to be read again
        self._seen: list[str] = []  # lines looked at since the last `forget`
        self._lines = 0
        self.exhausted = False

    def row(self, separator: str = ",") -> list[str] | None:
        """The next row that is not blank."""
        return next((row for row in csv.reader(self, delimiter=separator) if any(cell.strip() for cell in row)), None)

    def sample(self, count: int) -> list[str]:
        """The next lines that are not blank, at most `count`; they are read again."""
        found: list[str] = []
        taken = 0
        while len(found) < count and taken < _SAMPLE and len(self._ahead) < _MOST_BLANK and (line := self._line()):
            self._ahead.append(line)
            taken += len(line)
            if line.strip():
                found.append(line)
        return found

    def forget(self) -> int:
        """What was looked at is not read again; how many lines that were."""
        self._seen.clear()
        return self._lines

    def rewind(self) -> None:
        """What was looked at is read again."""
        self._ahead.extendleft(reversed(self._seen))
        self._seen.clear()

    def __iter__(self) -> Iterator[str]:
        while line := self._ahead.popleft() if self._ahead else self._line():
            self._lines += 1
            if self._lines > _MOST_BLANK:
                raise TooMuchError(f"no two rows within the first {_MOST_BLANK:,} lines. Remove the blank lines.")
            self._seen.append(line)
            yield line

    def read(self, size: int = -1) -> str:
        """As a file; pandas calls it."""
        if self._ahead:
            line = self._ahead.popleft()
            if 0 <= size < len(line):
                self._ahead.appendleft(line[size:])
                line = line[:size]
            return line
        piece = self._file.read(size)
        self._count(piece)
        return piece

    def _line(self) -> str:
        line = self._file.readline(_LONGEST_LINE)
        self._count(line)
        if len(line) == _LONGEST_LINE:
            raise TooMuchError(f"a line of more than {_LONGEST_LINE:,} characters. Expected rows of numbers.")
        return line

    def _count(self, piece: str) -> None:
        self._left -= len(piece)
        if self._left < 0:
            self.exhausted = True
            raise TooMuchError
