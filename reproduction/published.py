"""The figures that the paper prints, from its Tables S1 and S2."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Published:
    """Mean over three splits and its standard error."""

    mean: float
    error: float


@cache
def _table() -> dict[tuple[str, str, str], Published]:
    text = resources.files("reproduction").joinpath("published.csv").read_text(encoding="utf-8")
    return {
        (row["set"], row["method"], row["metric"]): Published(float(row["mean"]), float(row["error"]))
        for row in csv.DictReader(text.splitlines())
    }


def published(name: str, method: str, metric: str) -> Published | None:
    """metric: "rmse", "nll" or "minutes"; None where the paper has none."""
    return _table().get((name, method, metric))


def best_rmse(name: str) -> tuple[str, Published] | None:
    """The best of any method but RFF, whose split was another."""
    found = [(m, value) for (s, m, metric), value in _table().items() if (s, metric) == (name, "rmse") and m != "rff"]
    return min(found, key=lambda one: one[1].mean) if found else None
