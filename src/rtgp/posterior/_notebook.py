"""A posterior as a table, for notebooks."""

from __future__ import annotations

from typing import Any

from rtgp._markup import pairs
from rtgp._objectives.reading import held_inputs
from rtgp.posterior._settings import PosteriorReport


def as_table(model: Any, report: PosteriorReport | None) -> str:
    """What the posterior stands on and what it has computed so far; without a report, that it holds nothing."""
    n, d = held_inputs(model).shape[-2:]
    rows: list[tuple[str, object]] = [("given", f"{n:,} points with {d} input{'s' if d > 1 else ''}")]
    if report is None:
        rows.append(("computed", "nothing: what it held was released, or not needed yet"))
        return pairs(rows, "Posterior")
    iterated = f"{report.iterations} iterations to a residual of {report.residual:.1g}"
    solved = iterated if report.iterations else "directly"
    error = f", off by up to {report.variance_error:.1g}" if report.variance_error else ""
    rows += [
        ("method", f"{report.method} ({report.reason})"),
        ("mean solved", f"{solved}, {report.seconds:.2f} s, {str(report.dtype).removeprefix('torch.')}"),
        ("variance", report.variance + error),
    ]
    return pairs(rows, "Posterior", "mean(X), variance(X), covariance(X) and sample(X, n) predict.")
