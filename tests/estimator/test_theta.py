"""log_marginal_likelihood(theta), against the equation, finite differences and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpytorch.kernels import LinearKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import rtgp
from rtgp._estimator import theta as module
from rtgp._estimator.regressor import GPRegressor
from rtgp.errors import SettingError


def data(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    return X, 10.0 * np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=n)


def test_none_is_the_trained_value() -> None:
    gp = GPRegressor(random_state=0).fit(*data())
    assert gp.log_marginal_likelihood() == gp.log_marginal_likelihood_value_
    value, slope = gp.log_marginal_likelihood(eval_gradient=True)
    assert value == pytest.approx(gp.log_marginal_likelihood_value_, abs=1e-4)
    assert np.abs(slope).max() < 0.05  # an optimum
    assert gp.theta_names_ == ("noise", "outputscale", "lengthscale[0]", "lengthscale[1]")
    assert np.exp(gp.theta_) == pytest.approx([gp.hyperparameters_[name] for name in gp.theta_names_])


def test_is_scikit_learns_function() -> None:
    """Of the same kernel and a mean of zero, which ours has where it is put there."""
    X, y = data()
    theirs = GaussianProcessRegressor(ConstantKernel(2.0) * RBF([0.5, 3.0]) + WhiteKernel(0.3), optimizer=None).fit(
        X, y
    )
    gp = GPRegressor(standardize=False, random_state=0, steps=2).fit(X, y)
    gp.model_.mean_module.constant.data.fill_(0.0)
    for theta in (np.log([0.3, 2.0, 0.5, 3.0]), np.log([0.1, 60.0, 0.9, 20.0])):
        noise, *kernel = theta
        wanted, slope = theirs.log_marginal_likelihood(np.array([*kernel, noise]), eval_gradient=True)
        value, found = gp.log_marginal_likelihood(theta, eval_gradient=True)
        assert value == pytest.approx(wanted, rel=1e-6)
        np.testing.assert_allclose(found, np.roll(slope, 1), rtol=1e-4, atol=1e-5)
        assert gp.log_marginal_likelihood(theta) == pytest.approx(value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"outputs": "shared"},
        {"lengthscale_bounds": (0.05, 30.0), "noise_bounds": (1e-4, 2.0)},
        {"kernel": ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0))) + LinearKernel()},
    ],
    ids=["plain", "shared", "bounds", "sum with a prior"],
)
def test_gradient_is_that_of_the_value(settings: dict[str, Any]) -> None:
    X, y = data()
    target = np.column_stack([y, X[:, 1]]) if "outputs" in settings else y
    gp = GPRegressor(random_state=0, steps=3, **settings).fit(X, target)
    at = gp.theta_ + 0.1
    _, slope = gp.log_marginal_likelihood(at, eval_gradient=True)
    for k in range(len(at)):
        step = 1e-5 * np.eye(len(at))[k]
        difference = gp.log_marginal_likelihood(at + step) - gp.log_marginal_likelihood(at - step)
        assert slope[k] == pytest.approx(difference / 2e-5, rel=1e-4, abs=1e-4)


def test_the_model_is_left_as_it_is() -> None:
    X, y = data()
    gp = GPRegressor(random_state=0).fit(X, y)
    before = gp.predict(X), gp.theta_
    gp.log_marginal_likelihood(gp.theta_ + 1.0, eval_gradient=True)
    assert np.array_equal(gp.theta_, before[1])
    assert np.array_equal(gp.predict(X), before[0])


def test_by_rr_cg_the_value_is_near_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen draws: the same in each call; 60 points take as many probes' estimates as the log-determinant needs within
    some nats."""
    X, y = data(300)
    gp = GPRegressor(random_state=0, steps=3).fit(X, y)
    exact = gp.log_marginal_likelihood(gp.theta_ + 0.2)
    choice = rtgp.RRCG(operator="dense")
    monkeypatch.setattr(module, "choose_method", lambda *given: type("Choice", (), {"method": choice}))
    first, second = (gp.log_marginal_likelihood(gp.theta_ + 0.2, eval_gradient=True) for _ in range(2))
    assert first[0] == second[0]
    assert np.array_equal(first[1], second[1])
    assert first[0] == pytest.approx(exact, abs=5.0)


def test_thetas_that_are_none() -> None:
    X, y = data()
    gp = GPRegressor(random_state=0, steps=3, noise_bounds=(1e-3, 0.5)).fit(X, y)
    for theta in ([1.0], [np.nan] * 4, "text", np.zeros((4, 1))):
        with pytest.raises(SettingError, match="Expected theta as 4 finite numbers, the natural logarithms of noise"):
            gp.log_marginal_likelihood(theta)
    with pytest.raises(SettingError, match=r"theta puts 'noise' outside its bounds, 0.001 to 0.5. Got 1:"):
        gp.log_marginal_likelihood([0.0, 0.0, 0.0, 0.0])
    with pytest.raises(SettingError, match="SVGP has a likelihood of its own"):
        GPRegressor(method="svgp", steps=2, random_state=0).fit(X, y).log_marginal_likelihood([0.0] * 4)
    each = GPRegressor(random_state=0, steps=2).fit(X, np.column_stack([y, X[:, 0]]))
    assert each.log_marginal_likelihood() == each.log_marginal_likelihood_value_
    assert len(each.theta_) == len(each.theta_names_) == 2
    with pytest.raises(SettingError, match="Each output has a theta of its own"):
        each.log_marginal_likelihood(each.theta_[0])
