"""Rows of benchmark results: appended to a CSV file, never overwritten, each with what it was measured on."""

from __future__ import annotations

import csv
import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

import rtgp

RESULTS = Path(__file__).parent / "results"


def environment() -> dict[str, str]:
    """Hardware, versions and date."""
    if torch.cuda.is_available():
        hardware = torch.cuda.get_device_name()
    else:
        hardware = f"{_processor()}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": hardware,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpytorch": version("gpytorch"),
        "rtgp": rtgp.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def append(name: str, rows: list[dict[str, object]]) -> Path:
    """Add rows to results/NAME.csv, all with the same columns."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    where = environment()
    complete = [{**row, **where} for row in rows]
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(complete[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(complete)
    return path
