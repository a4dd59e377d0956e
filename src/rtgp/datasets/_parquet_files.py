"""Parquet files of flat columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtgp._extras import needs
from rtgp.datasets._dataset import Array
from rtgp.datasets._limits import check_columns, check_expansion
from rtgp.datasets._numbers import numbers_of
from rtgp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.parquet import FileMetaData

_NUMBER = 8  # bytes of one
_THRIFT_STRING = 16 * 2**20  # bytes of the longest text in the footer
_THRIFT_LIST = 1_000_000  # entries of its longest list


def read_parquet(path: Path) -> tuple[tuple[str, ...], Array]:
    """(names, values); what pandas has stored as the index of a frame is left out."""
    frame = parquet_frame(path)
    return tuple(frame.columns), numbers_of(frame, path)


def parquet_frame(path: Path) -> pd.DataFrame:
    """The columns as they are, text as categories; what pandas has stored as the index of a frame is left out."""
    with needs("data", "A Parquet file"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

    try:
        limits = {"thrift_string_size_limit": _THRIFT_STRING, "thrift_container_size_limit": _THRIFT_LIST}
        with ParquetFile(path, memory_map=False, **limits) as file:
            texts = _check(path, file.metadata)
        with ParquetFile(path, memory_map=False, read_dictionary=texts, **limits) as file:
            table = file.read(use_threads=False, use_pandas_metadata=False)
        index = _index_of(table.schema.metadata)
        table = table.select([i for i, name in enumerate(table.column_names) if name not in index])
        names = tuple(map(str, table.column_names))
        frame = table.rename_columns([str(i) for i in range(len(names))]).to_pandas(
            ignore_metadata=True, use_threads=False, date_as_object=False, deduplicate_objects=True
        )
    except MemoryError:
        raise
    except InputError:
        raise
    except (ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, NotImplementedError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error!s:.200}).") from error
    frame.columns = names
    return frame


def parquet_pieces(path: Path, cells: int) -> Iterator[pd.DataFrame]:
    """The columns in frames of at most so many cells. Their index counts the rows of data from 0."""
    with needs("data", "A Parquet file"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

    try:
        limits = {"thrift_string_size_limit": _THRIFT_STRING, "thrift_container_size_limit": _THRIFT_LIST}
        with ParquetFile(path, memory_map=False, **limits) as file:
            texts = _check(path, file.metadata, whole=False)
        with ParquetFile(path, memory_map=False, read_dictionary=texts, **limits) as file:
            index = _index_of(file.schema_arrow.metadata)
            names = [str(name) for name in file.schema_arrow.names if name not in index]
            rows, done = max(1, cells // max(1, len(names))), 0
            for batch in file.iter_batches(batch_size=rows, columns=names, use_threads=False):
                frame = batch.to_pandas(ignore_metadata=True, use_threads=False, date_as_object=False)
                frame.index += done
                done += len(frame)
                yield frame[names]
    except (ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, NotImplementedError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a readable Parquet file ({error!s:.200}).") from error


def _check(path: Path, metadata: FileMetaData, whole: bool = True) -> list[str]:
    """Hold what the footer claims against the file; the names of the columns of text. whole: all rows at once."""
    rows, columns = metadata.num_rows, metadata.num_columns
    check_columns(path, columns)
    width, texts = 0, []
    for i in range(columns):
        column = metadata.schema.column(i)
        name = str(column.path)
        if column.max_repetition_level > 0 or column.max_definition_level > 1 or name != column.name:
            outer = name.partition(".")[0]
            raise InputError(f"{path}: column {outer!r:.80} holds no plain numbers (lists or tables).")
        width += max(_NUMBER, column.length or 0)
        if column.physical_type == "BYTE_ARRAY":
            texts.append(name)  # read as a dictionary: one long text may be repeated at no cost to the file
    if whole:
        check_expansion(path, rows * width)
    return texts


def _index_of(metadata: dict[bytes, bytes] | None) -> set[str]:
    """The columns that hold the index of a pandas frame, by what pandas has written beside them."""
    try:
        facts: Any = json.loads((metadata or {})[b"pandas"])
        return {name for name in facts["index_columns"] if isinstance(name, str)}
    except (KeyError, ValueError, TypeError, RecursionError):
        return set()
