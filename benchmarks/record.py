"""Rows of benchmark results: appended to a CSV file, never overwritten, each with what it was measured on."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from rtgp.provenance import provenance

RESULTS = Path(__file__).parent / "results"


def append(name: str, rows: list[dict[str, object]]) -> Path:
    """Add rows to results/NAME.csv, all with the same columns."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    where = provenance("cuda" if torch.cuda.is_available() else "cpu")
    complete = [{**row, **where} for row in rows]
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(complete[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(complete)
    return path
