"""The standard errors that training states: those of a loss cover the exact one as often as standard errors do, and
that of a gradient is the length of its noise.

Seeds are fixed. Of 80 independent z-scores those within 1 are counted: 34 to 67 are expected, whether z is normal (each
is within with probability 0.68) or Student's t with 3 degrees of freedom (0.61: an error from 4 estimates). That is a
false alarm in 1,900 for new seeds at most; an error 3 times too small or too large escapes in 1 of 900.
"""

from __future__ import annotations

import numpy as np
import pytest

import rtgp
from gp_models import airports, exact, make
from rtgp._cli import scoring

N, SEEDS = 200, 80
# A rank at which the probes, not rounding, decide the scatter: 0.006 per point in one estimate.
METHOD = rtgp.RRCG(preconditioner=rtgp.PivotedCholesky(10))


@pytest.fixture(scope="module")
def z_scores() -> dict[str, np.ndarray]:
    """Of the first row of the history and of the end; the parameters stay where they are."""
    X, y = airports(N)
    wanted = -float(exact(make(X, y), y)[0])
    found: dict[str, list[float]] = {"row": [], "end": []}
    for seed in range(SEEDS):
        model = make(X, y)
        result = rtgp.fit(
            model, model.likelihood, X, y, METHOD, "adam", 1, learning_rate=1e-9, seed=seed, subset_start=False
        )
        row = result.history.rows[0]
        found["row"].append((float(row["loss"]) - wanted) / float(row["loss_error"]))
        found["end"].append((result.loss - wanted) / result.loss_error)
    return {name: np.array(scores) for name, scores in found.items()}


def covers(z: np.ndarray) -> bool:
    return 34 <= int((np.abs(z) < 1.0).sum()) <= 67


@pytest.mark.parametrize("name", ["row", "end"])
def test_they_cover_the_exact_loss(z_scores: dict[str, np.ndarray], name: str) -> None:
    assert covers(z_scores[name])


@pytest.mark.parametrize("name", ["row", "end"])
@pytest.mark.parametrize("factor", [3.0, 1.0 / 3.0])
def test_errors_three_times_off_would_not(z_scores: dict[str, np.ndarray], name: str, factor: float) -> None:
    assert not covers(z_scores[name] * factor)


def test_that_of_the_regressor_is_of_all_points_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In nats; a scale of the target moves the value and leaves its error as it is. `rtgp compare` states it per point,
    where it does not compute the exact one."""
    monkeypatch.setattr(scoring, "EXACT_UP_TO", 0)
    X, y = (t.numpy() for t in airports(N))
    one, thousand = (
        rtgp.GPRegressor(method=METHOD, steps=3, random_state=0).fit(X, scale * y) for scale in (1.0, 1000.0)
    )
    for regressor in (one, thousand):
        result = regressor.fit_result_
        assert regressor.log_marginal_likelihood_error_ == pytest.approx(N * result.loss_error, rel=1e-12)
        assert scoring.log_likelihood_per_point(regressor) == (-result.loss, result.loss_error)
    assert thousand.log_marginal_likelihood_error_ == pytest.approx(one.log_marginal_likelihood_error_, rel=0.1)
    difference = one.log_marginal_likelihood_value_ - thousand.log_marginal_likelihood_value_
    assert difference == pytest.approx(N * np.log(1000.0), rel=1e-3)


def test_that_of_a_gradient() -> None:
    """At the optimum a gradient is nothing but noise, of the mean square of the stated error. Measured over 50 seeds:
    1.1 of it, give or take 0.2; over 30 the limits are 4 such deviations off, a false alarm in 10,000. An error 3 times
    off would make it 9 or 1/9."""
    X, y = airports(N)
    best = make(X, y)
    rtgp.fit(best, best.likelihood, X, y, "cholesky")
    method, rows = rtgp.RRCG(probes=4, preconditioner=rtgp.PivotedCholesky(10)), []
    for seed in range(30):
        model = make(X, y)
        model.load_state_dict(best.state_dict())
        result = rtgp.fit(
            model, model.likelihood, X, y, method, "average-information", 1, seed=seed, subset_start=False
        )
        rows.append([float(result.history.rows[0][name]) for name in ("gradient_norm", "gradient_error")])
    found, stated = np.square(rows).mean(0)
    assert 1.0 / 3.0 < found / stated < 3.0
