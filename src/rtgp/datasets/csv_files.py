"""CSV files: with a header or without, gzip or not."""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from rtgp.datasets.dataset import Array
from rtgp.datasets.limits import check_columns, expands, most_bytes
from rtgp.datasets.numbers import numbers_of
from rtgp.errors import InputError

_LONGEST_LINE = 2**24  # characters of one of the first two rows, which are looked at before the rest is
_MOST_BLANK = 10_000  # lines before them
_CHUNK = 2**20  # cells that are parsed at once: text takes many times the memory of a number


def read_csv(path: Path, header: bool | None) -> tuple[tuple[str, ...], Array]:
    """(names, values). header=None: whether the first line names the columns is found out."""
    import pandas as pd

    skipped, text = 0, None
    try:
        with _open(path) as file:
            text = _Text(file, most_bytes(path) if _is_gzip(path) else math.inf)
            first = text.row()
            if first is None:
                raise InputError(f"{path}: the file is empty. Expected rows of comma-separated numbers.")
            named = not any(map(_is_number, first)) if header is None else header
            begin = first
            if named:
                skipped = text.forget()  # the rest of the file, behind the names, is read below
                begin = text.row() or []
            check_columns(path, max(len(first), len(begin)))
            text.rewind()
            names = _names(first, named, len(begin))
            values = _parse(text, path, names, "" if named or header is not None else _HINT)
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: a header and no rows of data. Expected at least one row.") from None
    except pd.errors.ParserError as error:
        if text is not None and text.exhausted:
            raise expands(path) from error
        raise InputError(f"{path}: {_ragged(str(error), skipped)}") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        what = f"not a readable CSV file ({error!s:.200})"
        raise InputError(f"{path}: {what}. Expected UTF-8 text, or gzip of it.") from error
    except _TooMuchError as error:
        raise expands(path) if text is not None and text.exhausted else InputError(f"{path}: {error}") from error
    if named and len(first) != values.shape[1]:
        raise InputError(f"{path}: {len(first)} column names but {values.shape[1]} columns in the first row of data.")
    return names, values


_HINT = " If the first line names the columns, pass header=True."


def _open(path: Path) -> TextIO:
    # utf-8-sig: spreadsheets write a byte-order mark, which would become part of the first column's name.
    if _is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _parse(text: _Text, path: Path, names: tuple[str, ...], hint: str) -> Array:
    """In pieces: a file of words is refused after the first of them."""
    import pandas as pd

    parts: list[Array] = []
    done = 0
    rows = max(1, _CHUNK // max(1, len(names)))
    with pd.read_csv(text, header=None, low_memory=False, chunksize=rows) as reader:
        for frame in reader:
            if frame.shape[1] == len(names):
                frame.columns = pd.Index(names)
            parts.append(numbers_of(frame, path, hint, done + 1))
            done += len(frame)
    return np.concatenate(parts)


def _names(first: list[str], named: bool, count: int) -> tuple[str, ...]:
    cells = [cell.strip() for cell in first] if named and len(first) == count else [""] * count
    return tuple(name or f"column {i}" for i, name in enumerate(cells, 1))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _ragged(message: str, skipped: int) -> str:
    """The parser counts lines from where it began; a reader counts them from the top of the file."""
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message)
    if not found:
        return f"not a readable CSV file ({message.strip():.200})."
    expected, line, saw = map(int, found.groups())
    return f"line {line + skipped} has {saw} columns where the first row of data has {expected}."


class _TooMuchError(Exception):
    """More text than is believed."""


class _Text:
    """The text of a file, of which the first rows are looked at and read again, and no more than `most` is taken."""

    def __init__(self, file: TextIO, most: float) -> None:
        self._file, self._left = file, most
        self._before = ""  # taken from the file, to be read again
        self._seen: list[str] = []  # lines looked at since the last `forget`
        self._lines = 0
        self.exhausted = False

    def row(self) -> list[str] | None:
        """The next row that is not blank."""
        return next((row for row in csv.reader(self) if any(cell.strip() for cell in row)), None)

    def forget(self) -> int:
        """What was looked at is not read again; how many lines that were."""
        self._seen.clear()
        return self._lines

    def rewind(self) -> None:
        self._before = "".join(self._seen)

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(_LONGEST_LINE):
            self._count(line)
            if len(line) == _LONGEST_LINE:
                raise _TooMuchError(f"a line of more than {_LONGEST_LINE:,} characters. Expected rows of numbers.")
            self._lines += 1
            if self._lines > _MOST_BLANK:
                raise _TooMuchError(f"no two rows within the first {_MOST_BLANK:,} lines. Remove the blank lines.")
            self._seen.append(line)
            yield line

    def read(self, size: int = -1) -> str:
        """As a file; pandas calls it."""
        if self._before:
            piece, self._before = self._before[:size], self._before[size:]
            return piece
        piece = self._file.read(size)
        self._count(piece)
        return piece

    def _count(self, piece: str) -> None:
        self._left -= len(piece)
        if self._left < 0:
            self.exhausted = True
            raise _TooMuchError
