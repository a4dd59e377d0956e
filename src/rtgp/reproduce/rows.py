"""Results as CSV files: one per item, one or more rows per cell, each with what it was computed on."""

from __future__ import annotations

import csv
import datetime
import io
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from rtgp.report.files import write_text
from rtgp.reproduce.spec import Cell, Row, Value, key_of

ENVIRONMENT = ("date", "hardware", "python", "torch", "gpytorch", "rtgp")


def environment(device: str) -> dict[str, str]:
    """Hardware, versions and date."""
    if torch.device(device).type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        hardware = f"{_processor()}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    versions = (platform.python_version(), torch.__version__, version("gpytorch"), version("rtgp"))
    return dict(zip(ENVIRONMENT, (datetime.date.today().isoformat(), hardware, *versions), strict=True))


class Results:
    """The rows of one item in one file. A cell's rows appear together or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, cells: Iterable[Cell] | None = None) -> list[Row]:
        """All rows, or those of the given cells, in the file's order."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", newline="") as file:
            rows = [{name: _value(text) for name, text in row.items() if text != ""} for row in csv.DictReader(file)]
        if cells is None:
            return list(rows)
        wanted = {key_of(cell) for cell in cells}
        return [row for row in rows if row["cell"] in wanted]

    def add(self, cell: Cell, rows: Sequence[Row], device: str) -> None:
        """Add the rows of a finished cell; the file is replaced in one step, so a kill leaves the old one."""
        where = environment(device)
        new = [{"cell": key_of(cell), **cell, **row, **where} for row in rows]
        everything = [*self.read(), *new]
        names = dict.fromkeys(name for row in everything for name in row if name not in ENVIRONMENT)
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, fieldnames=[*names, *ENVIRONMENT], lineterminator="\n")
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
