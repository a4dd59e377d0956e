"""A part of the stress matrix, and what the committed rows of all of it say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import rtgp
from properties.eight import METHODS
from stress.cells import ALARM, CALLS, TAU, TEN_PROBES, Cell, Data, evaluate, fit_outcome, judged, make_data
from stress.page import KEY, PAGE, Row, document, read, within

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


def cell_of(row: Row) -> Cell:
    n, data, lengthscale, noise, dtype, method = (row[key] for key in KEY)
    return Cell(int(n), data, float(lengthscale), float(noise), dtype, method)


def test_no_row_counts_as_right_by_its_own_scatter() -> None:
    """Rows have two digits, hence the 5%. A gradient's error is the norm of four that are judged one by one."""
    rows = read()
    for row in rows:
        bound, scatter = cell_of(row).tolerance, ALARM * float(row["standard_error"])
        if row["outcome"] == "right":
            assert scatter <= 1.05 * bound, row
            assert float(row["value_error"]) <= 1.05 * (bound + scatter), row
            assert float(row["gradient_error"]) <= 1.05 * 2.0 * (bound + scatter), row
        if row["outcome"] == "no answer":
            assert scatter > 0.95 * bound, row
    random = [row for row in rows if row["method"].endswith(TEN_PROBES)]
    assert len(random) == 19
    assert not [row for row in rows if row not in random and float(row["standard_error"]) > 0.0]
    outcomes = {cell_of(row): row["outcome"] for row in rows}
    for row in random:  # as the page says of those without an answer
        if row["n"] == "2000":
            assert outcomes[replace(cell_of(row), method="rr-cg")] == "right"


@pytest.mark.parametrize(
    "error, standard_error, outcome",
    [
        (0.5, 0.0, "right"),
        (1.01, 0.0, "wrong"),  # nothing scatters: the bound itself
        (0.5, 0.1, "right"),
        (1.5, 0.1, "right"),
        (0.0, 0.2, "no answer"),  # however close it came
        (5.0, 1.0, "no answer"),
        (50.0, 70.0, "no answer"),
        (5.0, 0.0, "wrong"),
        (5.0, 1.0 / ALARM, "wrong"),  # the most that an answer may scatter
        (5.0, 0.5, "wrong"),  # without an answer, and yet seen to be wrong
        (np.nan, 0.0, "wrong"),
        (np.nan, np.nan, "wrong"),
    ],
)
def test_what_is_right_wrong_or_no_answer(error: float, standard_error: float, outcome: str) -> None:
    """In units of the bound; one number of seven decides."""
    bound = 1e-6
    errors, standard_errors = np.zeros(7), np.zeros(7)
    errors[3], standard_errors[3] = bound * error, bound * standard_error
    assert judged(errors, standard_errors, bound) == outcome


def draws(rng: np.random.Generator, bias: float, scatter: float) -> str:
    """The judgement of CALLS Gaussian calls, in units of the bound."""
    found = bias + scatter * np.sqrt(CALLS) * rng.standard_normal((CALLS, 7))
    return judged(np.abs(found.mean(0)), found.std(0, ddof=1) / np.sqrt(CALLS), 1.0)


def test_the_false_alarm_is_as_stated_and_a_bias_is_seen() -> None:
    """A bias of the bound itself, 2,000 cells of 7 numbers, each with a probability of at most 1e-4 (one side of 2e-4):
    1.4 false alarms expected; more than 8 have a probability of 2e-5. Power: of 5 bounds every one is seen, and nothing
    is right whose standard error is as large as the bound."""
    rng = np.random.default_rng(0)
    assert sum(draws(rng, 1.0, 0.1) == "wrong" for _ in range(2000)) <= 8
    assert {draws(rng, 5.0, 0.1) for _ in range(200)} == {"wrong"}
    assert "right" not in {draws(rng, bias, 1.0) for bias in (0.0, 5.0) for _ in range(200)}


def test_ten_probes_give_no_answer_to_six_digits(data: dict[str, Data]) -> None:
    """The same cell by all directions is right."""
    cell = Cell(N, "grid", 0.1, 1e-2, "float64", "rr-cg")
    assert evaluate(cell, data["grid"]).outcome == "right"
    found = evaluate(replace(cell, method=cell.method + TEN_PROBES), data["grid"])
    assert found.outcome == "no answer"
    assert ALARM * found.standard_error > cell.tolerance


def test_a_wrong_answer_would_be_seen(data: dict[str, Data]) -> None:
    """Power: a factor that is kept in float32 beyond its limit is off by half."""
    cell = Cell(N, "grid", 1.0, 1e-5, "float32", "cholesky")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rtgp._kernels.composites.Scaled.widened", lambda form: None)
        found = evaluate(cell, data["grid"])
    assert (found.outcome, found.worked_in) == ("warned", "float32"), found
    assert found.gradient_error > 0.1
