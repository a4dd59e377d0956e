"""docs/numerical_limits.md, made from the rows of benchmarks/results/stress.csv alone."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from stress.cells import ALARM, ALL_DIRECTIONS, CALLS, KINDS, LIMIT, PER_CONDITION, TEN_PROBES, TOLERANCE

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "benchmarks" / "results" / "stress.csv"
PAGE = ROOT / "docs" / "numerical_limits.md"
TEXT = Path(__file__).parent / "numerical_limits.txt"
METHODS = {"cholesky": "Cholesky", "cg": "CG", "rr-cg": "RR-CG", "rr-cg" + TEN_PROBES: "RR-CG, ten probes"}
DTYPES = ("float64", "float32")
KEY = ("n", "data", "lengthscale", "noise", "dtype", "method")

Row = dict[str, str]


def read(path: Path = ROWS) -> list[Row]:
    """The latest row of each cell. Rows of RR-CG beyond ALL_DIRECTIONS are of an earlier rule: they left their own
    scatter 70 standard errors."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        latest = {tuple(row[key] for key in KEY): row for row in csv.DictReader(file)}
    return [row for row in latest.values() if row["method"] != "rr-cg" or int(row["n"]) <= ALL_DIRECTIONS]


def within(row: Row) -> bool:
    """Whether the bar asks for a right answer."""
    return float(row["condition"]) <= LIMIT[row["dtype"]]


def document(rows: Sequence[Row]) -> str:
    """The words of numerical_limits.txt, with a table in the place of each name in braces."""
    numbers = {
        "limit32": f"{LIMIT['float32']:g}",
        "limit64": f"{LIMIT['float64']:g}",
        "tolerance32": f"{TOLERANCE['float32']:g}",
        "tolerance64": f"{TOLERANCE['float64']:g}",
        "per_condition": f"{PER_CONDITION:g}",
        "calls": str(CALLS),
        "alarm": f"{ALARM:g}",
    }
    tables = {"summary": _summary(rows), "matrices": _matrices(rows), "others": _others(rows), "fits": _fits(rows)}
    tables["unanswered"] = _unanswered(rows)
    return TEXT.read_text(encoding="utf-8").format(**numbers, **tables)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _groups(rows: Sequence[Row], **fixed: str) -> Iterator[tuple[str, str, list[Row]]]:
    """(method, precision, its rows)"""
    some = [row for row in rows if all(row[key] == value for key, value in fixed.items())]
    for method, dtype in product(METHODS, DTYPES):
        own = [row for row in some if (row["method"], row["dtype"]) == (method, dtype)]
        if own:
            yield METHODS[method], dtype, own


def _summary(rows: Sequence[Row]) -> str:
    lines = []
    for inside, words in ((True, "up to the limit"), (False, "beyond")):
        for method, dtype, some in _groups([row for row in rows if within(row) is inside]):
            told = ("right", "no answer", "not converged", "warned", "wrong")
            counts = [sum(row["outcome"] == one for row in some) for one in told]
            numbers = [len(some), *counts[:2], len(some) - sum(counts), *counts[2:]]
            lines.append([method, dtype, words, *map(str, numbers)])
    head = [
        "method",
        "precision",
        "condition",
        "cells",
        "right",
        "no answer",
        "an error",
        "not converged, as told",
        "warned of",
        "wrong",
    ]
    return _table(head, lines)


def _matrices(rows: Sequence[Row]) -> str:
    parts = []
    for n in ("300", "2000"):
        for method, dtype, some in _groups(rows, n=n, data="grid"):
            noises, lengths = (sorted({float(row[key]) for row in some}) for key in ("noise", "lengthscale"))
            found = {(float(row["noise"]), float(row["lengthscale"])): row for row in some}
            lines = [[f"{s:g}", *(_cell(found.get((s, length))) for length in lengths)] for s in noises]
            head = ["noise", *(f"lengthscale {length:g}" for length in lengths)]
            parts.append(f"### {method}, {dtype}, n = {int(n):,}\n\n{_table(head, lines)}")
    return "\n\n".join(parts)


def _unanswered(rows: Sequence[Row]) -> str:
    some = [row for row in rows if row["outcome"] == "no answer"]
    if not some:
        return "No cell is without an answer."
    errors = sorted(float(row["standard_error"]) for row in some)
    return (
        f"**{len(some)} of {len(rows)} cells have no answer**: ten probes leave standard errors of "
        f"{errors[0]:.0e} to {errors[-1]:.0e} there."
    )


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row["outcome"] not in ("right", "no answer", "warned", "wrong"):
        return row["outcome"]
    words = f"{_worst(row):.0e}"
    words = {"right": words, "no answer": f"{words}, no answer", "warned": f"{words}, warned", "wrong": f"**{words}**"}[
        row["outcome"]
    ]
    return words + (" *64*" if row["worked_in"] != row["dtype"] else "")


def _worst(row: Row) -> float:
    return max(float(row["value_error"]), float(row["gradient_error"]))


def _others(rows: Sequence[Row]) -> str:
    lines = []
    for n, kind in product(sorted({int(row["n"]) for row in rows}), KINDS):
        if kind == "grid" and n <= 2000:
            continue
        for method, dtype, some in _groups(rows, n=str(n), data=kind):
            right = [row for row in some if row["outcome"] == "right"]
            others = sorted({row["outcome"] for row in some} - {"right"})
            worst = f"{max(map(_worst, right)):.0e}" if right else ""
            spans = [_span(some, "noise"), _span(some, "lengthscale")]
            numbers = [str(len(some)), str(len(right)), ", ".join(others), worst]
            lines.append([f"{n:,}", kind, method, dtype, *spans, *numbers])
    head = ["n", "data", "method", "precision", "noise", "lengthscale", "cells", "right", "others", "worst error"]
    return _table(head, lines)


def _span(rows: Sequence[Row], key: str) -> str:
    values = sorted({float(row[key]) for row in rows})
    return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"


def _fits(rows: Sequence[Row]) -> str:
    tried = [row for row in rows if row["after_fit"] != "not tried"]
    finite = sum(row["after_fit"] == "finite" for row in tried)
    bad = sum(row["after_fit"].startswith("not finite") for row in tried)
    assert all(math.isfinite(float(row["condition"])) for row in tried)
    numbers = [len(tried), finite, len(tried) - finite - bad, bad]
    head = ["fits of three steps", "came to their end", "ended with an error", "left a parameter that is not finite"]
    return _table(head, [[str(number) for number in numbers]])
