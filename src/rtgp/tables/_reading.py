"""A table as a person has it: words, dates and gaps too, in any of the usual dialects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rtgp._memory import enough_memory
from rtgp.datasets._csv_files import csv_pieces, unnamed
from rtgp.datasets._limits import check_size
from rtgp.datasets._npz_files import read_npz
from rtgp.datasets._parquet_files import parquet_frame, parquet_pieces
from rtgp.errors import InputError, SettingError
from rtgp.tables._dialect import SEPARATORS, Finder
from rtgp.tables._numbers import number_of

if TYPE_CHECKING:
    import pandas as pd

FORMATS = "'.csv', '.tsv' or '.txt' (or one of them with '.gz'), '.parquet' or '.npz'"
_CELLS = 2**20  # of a piece of a Parquet file
_TEXT = (".csv", ".tsv", ".txt")
_WORDS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "\\t": "\t"}
_ENCODINGS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True, eq=False)
class RawTable:
    """Columns as they stand in a file: numbers, dates, or words; None or NaN where a cell is empty.

    Parameters
    ----------
    frame : pandas.DataFrame
        The columns.
    name : str
        The name of the table.
    path : str
        Where it was read from, for errors.
    notes : tuple of str
        What was found out about the file, a sentence each.

    Examples
    --------
    >>> import pandas as pd
    >>> from rtgp.tables import RawTable
    >>> RawTable(pd.DataFrame({"column 1": [1.0], "column 2": ["a"]}), "some", "some.csv").unnamed
    True
    """

    frame: pd.DataFrame
    name: str
    path: str
    notes: tuple[str, ...] = field(default=())

    @property
    def unnamed(self) -> bool:
        """Whether the file does not name its columns."""
        return unnamed(self.frame.columns)


def read(
    path: str | Path,
    header: bool | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    text: Iterable[str] = (),
) -> RawTable:
    """Read a table of any content; what is made of its columns is `TableEncoder`'s to say.

    Parameters
    ----------
    path : str or Path
        A CSV or TSV file (also with ".gz"), a Parquet file (with `rtgp[data]`) or an NPZ file.
    header : bool, optional
        Whether the first line names the columns. Found out by default: it does where none of its cells is a number.
    separator : str, optional
        What stands between the cells: ",", ";", a tab or "|". Found out by default.
    decimal : str, optional
        What stands before a fraction, "." or ",". Found out by default.
    text : iterable of str
        Columns whose cells stay as they are written, such as keys with leading zeros.

    Returns
    -------
    RawTable
        The columns, and what was found out about the file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from rtgp.tables import read
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "houses.csv"
    ...     _ = file.write_text("price;area;colour\\n1.250.000;80,5;red\\n730.000;61,0;blue\\n")
    ...     table = read(file)
    >>> table.frame["price"].tolist(), table.frame["area"].tolist()
    ([1250000.0, 730000.0], [80.5, 61.0])
    """
    path, finder = Path(path), Finder(_separator(separator), _decimal(decimal))
    with enough_memory(f"{path}", "Read fewer rows or columns, or take a machine with more memory"):
        pieces = list(_pieces(path, header, finder, set(text)))
        names = tuple(map(str, pieces[0].columns))
        _check_names(path, names)
        frame = _joined(pieces, names, finder.dialect.decimal, set(text))
    if frame.shape[1] == 1 and path.name.lower().endswith(_TEXT):
        finder.notes.append("The table has one column only: if that is wrong, say what is between the cells "
                            "(--separator).")  # fmt: skip
    return RawTable(frame, _stem(path), str(path), tuple(finder.notes))


def read_pieces(
    path: str | Path,
    header: bool | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    text: Iterable[str] = (),
) -> Iterator[RawTable]:
    """The rows of a file in order, in tables of a bounded size: what `read` reads, for files of any length."""
    path, finder, words = Path(path), Finder(_separator(separator), _decimal(decimal)), set(text)
    with enough_memory(f"{path}", "Read fewer columns, or take a machine with more memory"):
        for piece in _pieces(path, header, finder, words, bounded=True):
            names = tuple(map(str, piece.columns))
            _check_names(path, names)
            yield RawTable(_joined([piece], names, finder.dialect.decimal, words), _stem(path), str(path))


def _pieces(
    path: Path, header: bool | None, finder: Finder, text: set[str], bounded: bool = False
) -> Iterator[pd.DataFrame]:
    import pandas as pd

    kind = _kind(path)
    if not bounded or kind == ".npz":
        check_size(path)
    if kind in _TEXT:
        encoding = "utf-8-sig" if path.suffix.lower() == ".gz" else _encoding(path)
        if encoding == "cp1252":
            finder.notes.append("The file is not in UTF-8: read as Western European text (Windows-1252).")
        yield from csv_pieces(path, header, finder, text, encoding)
    elif kind == ".parquet":
        yield from parquet_pieces(path, _CELLS) if bounded else [parquet_frame(path)]
    else:
        names, values = read_npz(path)
        yield pd.DataFrame(values, columns=list(names))


def _kind(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path}: no such file. Expected a table in {FORMATS}.")
    kind = (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()
    if kind not in (*_TEXT, ".parquet", ".npz"):
        remedy = " Save the sheet as CSV first." if kind in (".xlsx", ".xls", ".ods") else ""
        raise InputError(f"{path}: unknown kind of table {kind!r}. Expected {FORMATS}.{remedy}")
    return kind


def _stem(path: Path) -> str:
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def _encoding(path: Path) -> str:
    """UTF-8 where the whole file is; UTF-16 by its mark; else what spreadsheets write in Western Europe."""
    with path.open("rb") as file:
        start = file.read(2)
        if start in _ENCODINGS:
            return _ENCODINGS[start]
    try:
        with path.open(encoding="utf-8") as text:
            while piece := text.read(2**20):
                if "\0" in piece:
                    return "utf-8-sig"  # no text at all: the reader will say so
    except UnicodeDecodeError:
        with path.open("rb") as file:
            return "utf-8-sig" if b"\0" in file.read(2**20) else "cp1252"
    return "utf-8-sig"


def _joined(pieces: list[pd.DataFrame], names: tuple[str, ...], decimal: str, text: set[str]) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = {}
    for i, name in enumerate(names):
        parts = [piece.iloc[:, i] for piece in pieces]
        whole = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
        whole = whole.reset_index(drop=True)
        columns[name] = _plain(whole) if name in text else _understood(whole, decimal)
    return pd.DataFrame(columns)


def _understood(cells: pd.Series, decimal: str) -> pd.Series:
    """Numbers where every cell is one. Where most are, the others stay words among numbers; else all are words."""
    import pandas as pd

    if cells.dtype == bool:
        return cells.astype(np.float64)
    if not isinstance(cells.dtype, pd.CategoricalDtype) and not pd.api.types.is_string_dtype(cells):
        return cells
    words = _plain(cells)
    missing = words.isna().to_numpy()
    distinct = pd.unique(words[~missing])
    if any(not isinstance(cell, str | bool | int | float | np.generic) for cell in distinct):
        return words  # dates, lists and other objects of a Parquet column
    known = {cell: _number(cell, decimal) for cell in distinct}
    numbers = words.map(known).astype(np.float64)
    count = int(numbers.notna().sum())
    if count == int((~missing).sum()):
        return numbers
    if 2 * count >= int((~missing).sum()):
        return words.where(numbers.isna(), numbers)
    return words.map({cell: cell if isinstance(cell, str) else f"{cell}" for cell in distinct}).where(~missing, None)


def _plain(cells: pd.Series) -> pd.Series:
    """As objects, None where a cell is empty."""
    words = cells.astype(object)
    return words.where(words.notna(), None)


def _number(cell: Any, decimal: str) -> float:
    if not isinstance(cell, str):
        return float(cell)
    found = number_of(cell, decimal)
    return float("nan") if found is None else found


def _check_names(path: Path, names: tuple[str, ...]) -> None:
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        some = ", ".join(f"{name!r:.80}" for name in repeated[:10])
        raise InputError(f"{path}: column name(s) {some} given more than once. Rename them.")


def _separator(given: str | None) -> str | None:
    found = None if given is None else _WORDS.get(given, given)
    if found is not None and found not in SEPARATORS:
        raise SettingError(f"The separator must be a comma, a semicolon, a tab or a pipe. Got {given!r}.")
    return found


def _decimal(given: str | None) -> str | None:
    found = {"point": ".", "comma": ","}.get(given, given) if given is not None else None
    if found not in (None, ".", ","):
        raise SettingError(f"The decimal sign must be '.' or ','. Got {given!r}.")
    return found
