"""Vecchia's approximation as a method of GPRegressor."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gpytorch.kernels import PeriodicKernel, ScaleKernel

import rtgp
from rtgp.errors import SettingError, UnsupportedModelError

X = np.random.default_rng(0).uniform(-2.0, 2.0, (150, 2))
Y = (
    100.0
    + 20.0 * np.sin(2.0 * X[:, 0])
    + 10.0 * np.cos(2.0 * X[:, 1])
    + 2.0 * np.random.default_rng(2).normal(size=150)
)
NEW = np.random.default_rng(1).uniform(-2.0, 2.0, (50, 2))


@pytest.fixture(scope="module")
def fitted() -> rtgp.GPRegressor:
    return rtgp.GPRegressor(method=rtgp.Vecchia(10), random_state=0).fit(X, Y)


def test_with_all_earlier_points_it_is_cholesky() -> None:
    one, two = (
        rtgp.GPRegressor(method=method, dtype="float64", random_state=0).fit(X, Y)
        for method in (rtgp.Vecchia(149), "cholesky")
    )
    assert one.log_marginal_likelihood_value_ == pytest.approx(two.log_marginal_likelihood_value_, abs=1e-3)
    for name, value in two.hyperparameters_.items():
        assert one.hyperparameters_[name] == pytest.approx(value, rel=0.02, abs=0.02)
    np.testing.assert_allclose(one.predict(NEW), two.predict(NEW), atol=0.02)


def test_a_few_neighbours_come_near(fitted: rtgp.GPRegressor) -> None:
    exact = rtgp.GPRegressor(method="cholesky", random_state=0).fit(X, Y)
    assert fitted.method_ == rtgp.Vecchia(10)
    assert fitted.log_marginal_likelihood_error_ == 0.0
    assert fitted.log_marginal_likelihood_value_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=15.0)
    mean, std = fitted.predict(NEW, return_std=True)
    wanted, error = exact.predict(NEW, return_std=True, include_noise=False)
    assert np.sqrt(np.mean(((mean - wanted) / error) ** 2)) < 1.0
    assert np.median(std) == pytest.approx(np.median(exact.predict(NEW, return_std=True)[1]), rel=0.1)


def test_saved_and_loaded(fitted: rtgp.GPRegressor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    loaded = rtgp.GPRegressor.load(tmp_path / "model")
    assert loaded.method_ == rtgp.Vecchia(10)
    for one, two in zip(loaded.predict(NEW, return_std=True), fitted.predict(NEW, return_std=True), strict=True):
        assert np.array_equal(one, two)


def test_what_it_does_not_have(fitted: rtgp.GPRegressor) -> None:
    assert all(math.isnan(error) for error in fitted.hyperparameter_errors_.values())
    assert "given 10 neighbours" in fitted.fit_result_.message
    with pytest.raises(UnsupportedModelError, match="no joint covariance"):
        fitted.sample_y(NEW[:3])
    with pytest.raises(UnsupportedModelError, match="no joint covariance"):
        fitted.predict(NEW[:3], return_cov=True)
    with pytest.raises(SettingError, match="Vecchia has a likelihood of its own"):
        fitted.refine_log_marginal_likelihood(0.1)


def test_known_noise_and_a_kernel_object() -> None:
    gp = rtgp.GPRegressor(kernel=ScaleKernel(PeriodicKernel()), method="vecchia", steps=5, random_state=0)
    gp.fit(X, Y, noise=np.full(150, 4.0))
    assert gp.noise_variance_ == pytest.approx(4.0)
    assert np.isfinite(gp.predict(NEW, return_std=True)).all()


def test_a_learning_rate_means_adam() -> None:
    gp = rtgp.GPRegressor(method="vecchia", learning_rate=0.1, steps=5, random_state=0).fit(X, Y)
    assert gp.fit_result_.optimizer == "adam"
