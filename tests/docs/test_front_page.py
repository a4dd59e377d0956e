"""README's front page says what the committed rows say, whichever file they are in."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path

import front_page
import pytest
from benchmark_tables import Row, read_rows

README = front_page.README.read_text(encoding="utf-8")
WORDS = " ".join(README.split())


def test_the_table_is_that_of_the_rows() -> None:
    assert front_page.rewritten(README) == README, "run: python docs/_ext/front_page.py"


def test_no_set_and_no_seed_is_left_out() -> None:
    """Every set with a row on a GPU is in the table, by Cholesky and by three seeds."""
    on_a_card = {row["set"] for row in read_rows("time_to_optimum", {"hardware": "NVIDIA *"}, [])}
    rows = front_page.latest_rows()
    for name in on_a_card:
        own = [(row["method"], row["run_seed"]) for row in rows if row["set"] == name]
        assert sorted(own) == [("cholesky", "0"), ("rr-cg", "0"), ("rr-cg", "1"), ("rr-cg", "2")], name
        assert f"| {name} |" in README


def written(folder: Path, name: str, **row: str) -> None:
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)


def test_a_lower_row_in_any_file_is_seen(tmp_path: Path) -> None:
    """Power: it changes the gap, and the seconds of runs that end far above it go into parentheses."""
    written(tmp_path, "time_to_optimum.csv", set="pol", n="9600", seed="0", method="rr-cg", objective="-0.9")
    written(
        tmp_path, "another.csv", set="pol", n="9600", split="0", method="cg", objective="nan", best_on_the_way="-1.0"
    )
    written(tmp_path, "other_split.csv", set="pol", n="9600", split="1", method="cg", objective="-2.0")
    written(tmp_path, "estimates.csv", set="pol", n="0", points="9600", split="0", method="cg", loss="-3.0")
    best = front_page.best_known((tmp_path,))
    assert best == {("pol", "9600"): front_page.Best(-1.0, "another.csv")}
    rows = [row for row in front_page.latest_rows() if row["set"] == "pol"]
    made = front_page.table(rows, best)
    assert "| 0.0772 |" in made
    assert "(1.1 s), (1.3 s)" in made
    written(tmp_path, "exact.csv", set="pol", n="0", points="9600", split="0", method="cholesky", loss="-4.0")
    assert front_page.best_known((tmp_path,))["pol", "9600"].objective == -4.0


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="time to the optimum"):
        front_page.rewritten("# rtgp")


def honest(model: str, latest: bool) -> list[Row]:
    where = {"model": model, "hardware": "NVIDIA *"}
    return read_rows("roulette_honest", where, ["set", "n", "model", "method", "run_seed"] if latest else [])


def test_the_sentences_below_the_table() -> None:
    """The figures that are in words: bike within its bound of the noise, compiling, and plain CG at the same cost."""
    every = [float(row["objective"] or "nan") for row in honest("gpytorch", latest=False) if row["set"] == "bike"]
    bike = min(filter(math.isfinite, every))
    assert f"with that bound the best known is {bike:.3f}" in WORDS
    compiling = []
    for name in {row["set"] for row in front_page.latest_rows()} - {"bike"}:
        runs = [row for row in front_page.latest_rows() if (row["set"], row["method"]) == (name, "rr-cg")]
        first, *others = (float(row["seconds_to_optimum"]) for row in runs)
        compiling.append(first - statistics.fmean(others))
    assert f"{min(compiling):.0f} to {max(compiling):.0f} s, once for each" in WORDS
    rows = honest("rtgp", latest=True)
    for name in {row["set"] for row in rows}:
        ends = {
            method: {r["run_seed"]: float(r["objective"]) for r in rows if (r["set"], r["method"]) == (name, method)}
            for method in ("rr-cg", "cg-same-cost")
        }
        both = [seed for seed, end in ends["cg-same-cost"].items() if end == end and seed in ends["rr-cg"]]
        assert len(both) >= 2
        difference = statistics.fmean(ends["rr-cg"][seed] - ends["cg-same-cost"][seed] for seed in both)
        assert abs(difference) <= 0.0001, name
    assert "within 0.0001 per point, when it is given enough iterations" in WORDS
