"""The table on README's front page, made from the committed rows: `python docs/_ext/front_page.py` writes it anew.

Seconds and ends are the latest rows of benchmarks/results/time_to_optimum.csv on a GPU, all seeds. The best known is
the least objective of the same set, points and split in any committed file, whatever the start, the optimiser or the
lower bound of the noise: `sources` says where it is.
"""

from __future__ import annotations

import csv
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

from benchmark_tables import RESULTS, Row, read_rows

ROOT = RESULTS.parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- time to the optimum: begin -->", "<!-- time to the optimum: end -->"
FOLDERS = (RESULTS, ROOT / "reproduction" / "results")
SPLIT = "0"
WITHIN = 0.002  # of bench_time_to_optimum.py: how near a run has to come, per point
OBJECTIVES = ("objective", "best_on_the_way", "optimum")
SPLIT_COLUMNS = {"time_to_optimum.csv": "seed", "exact_optimum.csv": "seed"}  # "split" in the others
# Rows do not say in which precision a run ended. It begins in float32; where that cannot serve it goes on in float64,
# which it does on these sets on an H200 (docs/exact_optimum.md#float32).
ENDS_IN_FLOAT64 = {"bike", "keggdirected", "keggundirected"}


@dataclass(frozen=True)
class Best:
    objective: float
    file: str


def best_known(folders: tuple[Path, ...] = FOLDERS) -> dict[tuple[str, str], Best]:
    """By (set, n). Files without a column for the split are of other splits, or of a few points."""
    found: dict[tuple[str, str], Best] = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row.get(SPLIT_COLUMNS.get(path.name, "split")) != SPLIT:
                    continue
                values = [float(row[column]) for column in OBJECTIVES if row.get(column)]
                if "loss" in row and row.get("method") == "cholesky":  # of the others it is an estimate
                    values.append(float(row["loss"]))
                key = row["set"], row["points"] if row.get("points") else row["n"]
                for value in filter(math.isfinite, values):
                    if key not in found or value < found[key].objective:
                        found[key] = Best(value, path.name)
    return found


def table(rows: list[Row], best: dict[tuple[str, str], Best]) -> str:
    """rows: of time_to_optimum.csv, the latest of each run."""
    head = [
        "training set",
        "n",
        "Cholesky, L-BFGS, float64",
        "`RRCG()`, seed 0, compiling included",
        "seeds 1 and 2",
        "precision of `RRCG()`",
        "final gap, Cholesky",
        "final gap, `RRCG()`, three seeds",
    ]
    lines = [head, ["---"] * len(head)]
    for name, n in sorted({(row["set"], row["n"]) for row in rows}, key=lambda one: int(one[1])):
        own = [row for row in rows if (row["set"], row["n"]) == (name, n)]
        (cholesky,) = [row for row in own if row["method"] == "cholesky"]
        runs = sorted((row for row in own if row["method"] == "rr-cg"), key=lambda row: int(row["run_seed"]))
        least = best[name, n].objective
        lines.append(
            [
                name,
                f"{int(n):,}",
                _seconds(cholesky, least),
                _seconds(runs[0], least),
                ", ".join(_seconds(run, least) for run in runs[1:]),
                "float32, then float64" if name in ENDS_IN_FLOAT64 else "float32",
                _gap(cholesky, least),
                ", ".join(_gap(run, least) for run in runs),
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _seconds(row: Row, least: float) -> str:
    """In parentheses where the end is not near the best known, only near the best of these runs."""
    seconds = float(row["seconds_to_optimum"])
    if math.isnan(seconds):
        return f"not in {row['steps']} steps, {float(row['seconds']):.1f} s"
    return f"{seconds:.1f} s" if float(row["objective"]) <= least + WITHIN else f"({seconds:.1f} s)"


def _gap(row: Row, least: float) -> str:
    return f"{float(row['objective']) - least:.4f}"


def sources(rows: list[Row], best: dict[tuple[str, str], Best]) -> str:
    """Where the best known objectives are."""
    keys = sorted({(row["set"], row["n"]) for row in rows}, key=lambda one: int(one[1]))
    files = sorted({best[key].file for key in keys})
    parts = []
    for file in files:
        sets = [f"{name} {best[name, n].objective:.5f}" for name, n in keys if best[name, n].file == file]
        parts.append(f"{', '.join(sets)} (`{file}`)")
    return textwrap.fill(f"Best known: {'; '.join(parts)}.", 120)


def latest_rows() -> list[Row]:
    where = {"failure": "", "hardware": "NVIDIA *", "method": "cholesky | rr-cg", "optimizer": "lbfgs | auto"}
    return read_rows("time_to_optimum", where, ["set", "n", "seed", "run_seed", "method", "optimizer"])


def made() -> str:
    """What stands between the two marks."""
    rows, best = latest_rows(), best_known()
    return f"{table(rows, best)}\n\n{sources(rows, best)}"


def rewritten(page: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no {BEGIN} or no {END}.")
    return f"{before}{BEGIN}\n{made()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
