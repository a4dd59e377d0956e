"""CSV files: with a header or without, gzip or not, in pieces."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rtgp.datasets._csv_text import Text, TooMuchError, most_text, names_of, open_text, ragged
from rtgp.datasets._dataset import Array
from rtgp.datasets._limits import check_columns, expands
from rtgp.datasets._numbers import numbers_of
from rtgp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_CHUNK = 2**20  # cells that are parsed at once: text takes many times the memory of a number
_SAMPLE = 200  # lines that a dialect is found from


@dataclass(frozen=True)
class Dialect:
    """How the cells of a file are written. missing: cells that say that there is no value, beside pandas' own."""

    separator: str = ","
    decimal: str = "."
    missing: tuple[str, ...] = ()


PLAIN = Dialect()


def read_csv(path: Path, header: bool | None) -> tuple[tuple[str, ...], Array]:
    """(names, values) of comma-separated numbers. header=None: whether the first line names the columns is found out.

    A file of words is refused after the first piece of them.
    """
    parts: list[Array] = []
    names: tuple[str, ...] = ()
    for frame in csv_pieces(path, header):
        names = tuple(map(str, frame.columns))
        parts.append(csv_numbers(frame, path, header))
    return names, np.concatenate(parts)


def csv_numbers(frame: pd.DataFrame, path: Path, header: bool | None) -> Array:
    """A piece as an array."""
    hint = _HINT if header is None and unnamed(tuple(map(str, frame.columns))) else ""
    return numbers_of(frame, path, hint, 1 + int(frame.index[0]))


_HINT = " If the first line names the columns, pass header=True."


def csv_pieces(
    path: Path,
    header: bool | None,
    find: Callable[[list[str]], Dialect] = lambda lines: PLAIN,
    text: Iterable[str] = (),
    encoding: str = "utf-8-sig",
) -> Iterator[pd.DataFrame]:
    """Frames of as many rows as are parsed at once, at least one. Their index counts the rows of data from 0.

    find: the dialect by the first lines. text: columns whose cells stay as they are written.
    """
    import pandas as pd

    skipped, source = 0, None
    try:
        with open_text(path, encoding) as file:
            source = Text(file, most_text(path))
            dialect = find(source.sample(_SAMPLE))
            first = source.row(dialect.separator)
            if first is None:
                raise InputError(f"{path}: the file is empty. Expected rows of comma-separated numbers.")
            named = not any(_is_number(cell, dialect.decimal) for cell in first) if header is None else header
            begin = first
            if named:
                skipped = source.forget()  # the rest of the file, behind the names, is read below
                begin = source.row(dialect.separator) or []
            check_columns(path, max(len(first), len(begin)))
            source.rewind()
            names = names_of(first, named, len(begin))
            yield from _frames(source, path, names, len(first) if named else None, dialect, set(text))
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: a header and no rows of data. Expected at least one row.") from None
    except pd.errors.ParserError as error:
        if source is not None and source.exhausted:
            raise expands(path) from error
        raise InputError(f"{path}: {ragged(str(error), skipped)}") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        what = f"not a readable CSV file ({error!s:.200})"
        raise InputError(f"{path}: {what}. Expected UTF-8 text, or gzip of it.") from error
    except TooMuchError as error:
        raise expands(path) if source is not None and source.exhausted else InputError(f"{path}: {error}") from error


def unnamed(names: Iterable[str]) -> bool:
    """Whether these are the names of the columns of a file that has none."""
    return all(name == f"column {i}" for i, name in enumerate(names, 1))


def _frames(
    source: Text, path: Path, names: tuple[str, ...], given: int | None, dialect: Dialect, text: set[str]
) -> Iterator[pd.DataFrame]:
    import pandas as pd

    options: dict[str, Any] = {"sep": dialect.separator, "decimal": dialect.decimal}
    if dialect.missing:
        options |= {"na_values": list(dialect.missing), "skipinitialspace": True}
    as_written = {i: str for i, name in enumerate(names) if name in text}
    rows = max(1, _CHUNK // max(1, len(names)))
    with pd.read_csv(source, header=None, low_memory=False, chunksize=rows, dtype=as_written, **options) as reader:
        for frame in reader:
            if given is not None and given != frame.shape[1]:
                columns = f"{frame.shape[1]} columns in the first row of data"
                raise InputError(f"{path}: {given} column names but {columns}.")
            if frame.shape[1] == len(names):
                frame.columns = pd.Index(names)
            yield frame


def _is_number(cell: str, decimal: str) -> bool:
    try:
        float(cell.replace(decimal, ".") if decimal != "." else cell)
    except ValueError:
        return False
    return True
