"""Parquet files of flat columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtgp.datasets.dataset import Array
from rtgp.datasets.limits import check_columns, check_expansion
from rtgp.datasets.numbers import numbers_of
from rtgp.errors import InputError

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

_NUMBER = 8  # bytes of one
_THRIFT_STRING = 16 * 2**20  # bytes of the longest text in the footer
_THRIFT_LIST = 1_000_000  # entries of its longest list


def read_parquet(path: Path) -> tuple[tuple[str, ...], Array]:
    """(names, values); what pandas has stored as the index of a frame is left out."""
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
    return names, numbers_of(frame, path)


def _check(path: Path, metadata: FileMetaData) -> list[str]:
    """Hold what the footer claims against the file; the names of the columns of text."""
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
    check_expansion(path, rows * width)
    return texts


def _index_of(metadata: dict[bytes, bytes] | None) -> set[str]:
    """The columns that hold the index of a pandas frame, by what pandas has written beside them."""
    try:
        facts: Any = json.loads((metadata or {})[b"pandas"])
        return {name for name in facts["index_columns"] if isinstance(name, str)}
    except (KeyError, ValueError, TypeError, RecursionError):
        return set()
