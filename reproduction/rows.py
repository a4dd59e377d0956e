"""Results as CSV files: one per item, one or more rows per cell, each with what it was computed on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from reproduction.spec import Cell, Row, Value, key_of
from rtgp._provenance import COLUMNS, provenance
from rtgp._storage import write_text


class Results:
    """The rows of one item in one file. A cell's rows appear together or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, cells: Iterable[Cell] | None = None) -> list[Row]:
        """All rows in the file's order, or those of the given cells in the cells' order."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", newline="") as file:
            rows = [{name: _value(text) for name, text in row.items() if text != ""} for row in csv.DictReader(file)]
        if cells is None:
            return list(rows)
        place = {key_of(cell): k for k, cell in enumerate(cells)}
        return sorted((row for row in rows if row["cell"] in place), key=lambda row: place[str(row["cell"])])

    def add(self, cell: Cell, rows: Sequence[Row], device: str) -> None:
        """Add the rows of a finished cell; the file is replaced in one step, so a kill leaves the old one."""
        where = provenance(device)
        new = [{"cell": key_of(cell), **cell, **row, **where} for row in rows]
        everything = [*self.read(), *new]
        names = dict.fromkeys(name for row in everything for name in row if name not in COLUMNS)
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, fieldnames=[*names, *COLUMNS], lineterminator="\n")
        writer.writeheader()
        for row in everything:
            writer.writerow({name: _text(value) for name, value in row.items()})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, buffer.getvalue())


def _text(value: Value) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
