"""Rows of benchmark results: appended to a CSV file, never changed, each with its code and machine."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import torch

from rtgp._provenance import provenance

RESULTS = Path(__file__).parent / "results"
COMMIT = "RTGP_COMMIT"  # names the commit where the code has been copied without its history


def append(name: str, rows: list[dict[str, object]]) -> Path:
    """Add rows to results/NAME.csv. A column that the file does not have yet is empty in its older rows."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    where = provenance("cuda" if torch.cuda.is_available() else "cpu") | {"commit": commit()}
    complete: list[dict[str, object]] = [{**row, **where} for row in rows]
    older: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="") as file:
            older = [dict(row) for row in csv.DictReader(file)]
    columns = list(dict.fromkeys(name for row in [*older, *complete] for name in row))
    if older and columns == list(older[0]):
        with path.open("a", newline="") as file:
            csv.DictWriter(file, columns, restval="", lineterminator="\n").writerows(complete)
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*older, *complete])
    return path


def commit() -> str:
    """The commit of the code that runs, with a plus sign where `src` has been changed since; empty where unknown."""
    folder = Path(__file__).parent.parent
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    try:
        found = _git(folder, "rev-parse", "--short=7", "HEAD")
        return found + ("+" if _git(folder, "status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
