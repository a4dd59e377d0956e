"""A whole training by the tiles that count ends where one with all of K does."""

from __future__ import annotations

import numpy as np
import pytest

import rtgp


def fitted(operator: str, X: np.ndarray, y: np.ndarray) -> rtgp.GPRegressor:
    method = rtgp.RRCG(operator=operator)
    gp = rtgp.GPRegressor(kernel="matern32", method=method, device="cpu", dtype="float64", random_state=0)
    return gp.fit(X, y)


def rough(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Short lengthscales in a wide field: most tiles hold nothing."""
    random = np.random.default_rng(0)
    X = random.uniform(0.0, 60.0, (n, 2))
    waves = random.normal(size=(40, 2)) * 1.2
    y = np.sin(X @ waves.T + random.uniform(0.0, 6.0, 40)).sum(1) / 6.0 + 0.3 * random.normal(size=n)
    return X, y


def same_place(near: rtgp.GPRegressor, full: rtgp.GPRegressor) -> None:
    """The same seed draws the same probes: only what is left out differs."""
    a, b = near.model_.covar_module, full.model_.covar_module
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), atol=2e-2)
    assert near.fit_result_.loss == pytest.approx(full.fit_result_.loss, abs=2e-3)


def test_a_fit_by_few_tiles_ends_in_the_same_place() -> None:
    X, y = rough(900)
    near, full = fitted("near", X, y), fitted("dense", X, y)
    assert near.fit_result_.status.value == full.fit_result_.status.value == "converged"
    same_place(near, full)
    new = rough(950)[0][900:]
    np.testing.assert_allclose(near.predict(new), full.predict(new), atol=2e-2)


@pytest.mark.slow
@pytest.mark.real_data
def test_on_satellite_temperatures(real_data: str) -> None:
    data = rtgp.datasets.load("heaton-satellite", real_data).subset(6000, seed=0)
    near, full = fitted("near", data.X, data.y), fitted("dense", data.X, data.y)
    same_place(near, full)
