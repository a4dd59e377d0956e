"""Tables that are larger than the memory, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rtgp._memory import enough_memory
from rtgp.datasets._csv_files import csv_numbers, csv_pieces
from rtgp.datasets._dataset import check_finite
from rtgp.datasets._numbers import numbers_of
from rtgp.datasets._parquet_files import parquet_pieces
from rtgp.datasets._tables import Table, check_names, kind_of, read_table
from rtgp.errors import InputError

_CELLS = 2**20  # of a piece


def table_pieces(path: str | Path, header: bool | None = None) -> Iterator[Table]:
    """The rows of a CSV, Parquet or NPZ file in order, in tables of a bounded size; at least one.

    It reads what `read_table` does, and refuses the same. The arrays of an NPZ are read whole.
    """
    path = Path(path)
    kind, name = kind_of(path)
    if kind == ".npz":
        table = read_table(path, header)
        for rows in np.array_split(table.values, max(1, -(-table.values.size // _CELLS))):
            yield Table(table.columns, rows, table.name)
        return
    with enough_memory(f"{path}", "Read fewer columns, or take a machine with more memory"):
        frames = parquet_pieces(path, _CELLS) if kind == ".parquet" else csv_pieces(path, header)
        done = 0
        for frame in frames:
            columns = tuple(map(str, frame.columns))
            check_names(path, columns)
            values = numbers_of(frame, path, "", done + 1) if kind == ".parquet" else csv_numbers(frame, path, header)
            check_finite(values, columns, str(path), done + 1)
            done += len(values)
            if len(values):
                yield Table(columns, values, name)
        if done == 0:
            raise InputError(f"{path}: no rows of data. Expected at least one.")
