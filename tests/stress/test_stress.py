"""A part of the stress matrix, and what the committed rows of all of it say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rtgp
from properties.eight import METHODS
from stress.cells import TAU, Cell, Data, evaluate, fit_outcome, make_data
from stress.page import PAGE, document, read, within

N = 300
EXTREMES = [(noise, lengthscale) for noise in (1e-8, 1e-4, 10.0) for lengthscale in (1e-3, 0.1, 1e3)]
HARD = (1e-8, 0.1)  # as many eigenvalues above the noise as there are points: nothing for conjugate gradients
cells = pytest.mark.parametrize("noise, lengthscale", EXTREMES)
iterative_cells = pytest.mark.parametrize(
    "noise, lengthscale", [pytest.param(*one, marks=pytest.mark.slow if one == HARD else ()) for one in EXTREMES]
)
dtypes = pytest.mark.parametrize("dtype", ["float64", "float32"])


@pytest.fixture(scope="module")
def data() -> dict[str, Data]:
    kinds = ("grid", "six inputs", "duplicates", "outlier in x", "outlier in y")
    return {kind: make_data(N, kind) for kind in kinds}


@cells
@dtypes
def test_cholesky_is_right_everywhere(data: dict[str, Data], noise: float, lengthscale: float, dtype: str) -> None:
    """Up to the limit by the bar; beyond it, in float32, because the work is then done in float64."""
    for kind, one in data.items():
        found = evaluate(Cell(N, kind, lengthscale, noise, dtype, "cholesky"), one)
        assert found.outcome == "right", (kind, found)


@iterative_cells
@dtypes
@pytest.mark.parametrize("method", ["cg", "rr-cg"])
def test_conjugate_gradients_are_right_or_say_why(
    data: dict[str, Data], noise: float, lengthscale: float, dtype: str, method: str
) -> None:
    """Never a wrong answer; and a right one but for the hard cell, where RR-CG raises and CG reports its columns."""
    found = evaluate(Cell(N, "grid", lengthscale, noise, dtype, method), data["grid"])
    if (noise, lengthscale) == HARD:
        assert found.outcome == {"cg": "not converged", "rr-cg": "ConvergenceError"}[method], found
        assert method == "cg" or "preconditioner of higher rank" in found.words
    else:
        assert found.outcome == "right", found


def test_the_remedy_that_the_error_names_works(data: dict[str, Data], monkeypatch: pytest.MonkeyPatch) -> None:
    """The hard cell, with a preconditioner of half as many columns as there are points."""
    rank = rtgp.PivotedCholesky(N // 2)
    method = rtgp.RRCG(rtgp.truncation.ResidualDriven(TAU), N, rank)
    monkeypatch.setattr("stress.cells.method_of", lambda name, n, probes: method)
    found = evaluate(Cell(N, "grid", HARD[1], HARD[0], "float64", "rr-cg"), data["grid"])
    assert found.outcome == "right", found


@pytest.mark.parametrize("method", ["cholesky", "cg", "rr-cg"])
@pytest.mark.parametrize("kind", ["duplicates", "outlier in x", "outlier in y"])
def test_no_nan_reaches_a_parameter(data: dict[str, Data], kind: str, method: str) -> None:
    """A step of training from a corner of the matrix, in float32; the rows below have all of it, and three steps."""
    outcome = fit_outcome(Cell(N, kind, 1.0, 1e-8, "float32", method), data[kind], steps=1)
    assert not outcome.startswith("not finite"), outcome


@pytest.mark.filterwarnings("ignore::rtgp.errors.PrecisionWarning", "ignore::rtgp.errors.ApproximationWarning")
@pytest.mark.parametrize("place", ["x", "y"])
@pytest.mark.parametrize("name", METHODS)
def test_an_outlier_of_a_million_through_the_estimator(name: str, place: str) -> None:
    """All eight methods: finite predictions and parameters."""
    rng = np.random.default_rng(0)
    X = rng.random((80, 2))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=80)
    (X if place == "x" else y[:, None])[40] = 1e6
    gp = rtgp.GPRegressor(method=METHODS[name], steps=2, random_state=0).fit(X, y)
    for part in gp.predict(X, return_std=True):
        assert np.isfinite(part).all()
    assert all(bool(torch.isfinite(p).all()) for p in gp.model_.parameters())


def test_the_page_is_made_from_the_rows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == document(read()), "run: python benchmarks/bench_stress.py --docs > docs/numerical_limits.md"


def test_no_row_is_wrong() -> None:
    rows = read()
    assert len(rows) > 300
    assert [row for row in rows if row["outcome"] == "wrong"] == []
    assert [row for row in rows if row["after_fit"].startswith("not finite")] == []
    # By Cholesky every answer up to the limit is right; the solvers that iterate may say that they cannot.
    assert [row for row in rows if within(row) and row["method"] == "cholesky" and row["outcome"] != "right"] == []


def test_a_wrong_answer_would_be_seen(data: dict[str, Data]) -> None:
    """Power: a factor that is kept in float32 beyond its limit is off by half."""
    cell = Cell(N, "grid", 1.0, 1e-5, "float32", "cholesky")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rtgp.objectives.cholesky._LIMIT", 1e300)
        found = evaluate(cell, data["grid"])
    assert (found.outcome, found.worked_in) == ("warned", "float32"), found
    assert found.gradient_error > 0.1
