"""scikit-learn's kernels as GPyTorch's: the same covariances, values, bounds and noise."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)
from sklearn.model_selection import GridSearchCV

from rtgp._estimator.beginning import Beginning
from rtgp._estimator.regressor import GPRegressor
from rtgp._estimator.sklearn_kernels import translated
from rtgp.errors import SettingError

CASES = {
    "RBF": RBF(0.7),
    "RBF, a length scale each": RBF([0.7, 1.9]),
    "Matern 1/2": Matern(0.8, nu=0.5),
    "Matern 3/2": Matern([0.8, 1.1], nu=1.5),
    "Matern 5/2": Matern(nu=2.5),
    "Matern, smooth": Matern(0.9, nu=np.inf),
    "RationalQuadratic": RationalQuadratic(0.7, 1.3),
    "DotProduct": DotProduct(0.6),
    "DotProduct, homogeneous": DotProduct(0.0, "fixed"),
    "ConstantKernel": ConstantKernel(2.0),
    "constants": ConstantKernel(2.0) * ConstantKernel(0.5),
    "scaled": 3.0 * RBF(0.7),
    "twice scaled": ConstantKernel(2.0) * (1.5 * RBF(0.7)),
    "product": 2.0 * RBF(0.7) * Matern(1.2, nu=1.5),
    "sum": 2.0 * RBF(0.7) + 0.5 * RationalQuadratic() + DotProduct(),
    "product of sums": (RBF(0.7) + ConstantKernel(0.3)) * (Matern(nu=0.5) + 2.0 * RBF([1.0, 2.0])),
}


@pytest.mark.parametrize("kernel", CASES.values(), ids=CASES)
def test_the_covariance_is_the_same(kernel: Any) -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    made, beginning = translated(kernel, 2, Beginning())
    found = made.double()(torch.from_numpy(X)).to_dense().detach().numpy()
    # GPyTorch keeps numbers in float32 until the kernel is made double.
    np.testing.assert_allclose(found, kernel(X), rtol=2e-6, atol=1e-6)
    assert beginning == Beginning()


def test_a_period_of_one_input() -> None:
    X = np.linspace(0, 3, 9)[:, None]
    kernel = ExpSineSquared(1.4, 0.8) * RBF(2.0)
    made, _ = translated(kernel, 1, Beginning())
    np.testing.assert_allclose(made.double()(torch.from_numpy(X)).to_dense().detach(), kernel(X), rtol=1e-5, atol=1e-6)


def test_bounds_stay_bounds() -> None:
    kernel = ConstantKernel(2.0, (0.5, 4.0)) * RBF([0.7, 1.0], [(0.1, 2.0), (0.2, 3.0)]) + Matern(1.0, "fixed", nu=1.5)
    kernel += WhiteKernel(0.3, (0.1, 0.6))
    made, beginning = translated(kernel, 2, Beginning())
    scaled, fixed = made.kernels
    assert [float(b) for b in scaled.raw_outputscale_constraint] == pytest.approx([0.5, 4.0])
    low, high = scaled.base_kernel.raw_lengthscale_constraint
    assert low.tolist() == pytest.approx([0.1, 0.2])
    assert high.tolist() == pytest.approx([2.0, 3.0])
    assert not fixed.raw_lengthscale.requires_grad
    assert (beginning.noise_variance, beginning.noise_bounds) == (0.3, (0.1, 0.6))


def test_finds_scikit_learns_optimum() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 2))
    y = 3 * np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=60)
    y -= y.mean()
    kernel = ConstantKernel(1.0) * RBF([1.0, 1.0], (1e-2, 50.0)) + WhiteKernel(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a length scale has come to its bound
        theirs = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0).fit(X, y)
    ours = GPRegressor(kernel, standardize=False, random_state=0).fit(X, y)
    # Ours has a constant mean besides, which is worth little here.
    assert 0 <= ours.log_marginal_likelihood_value_ - theirs.log_marginal_likelihood_value_ < 2.0
    assert ours.hyperparameters_["noise"] == pytest.approx(theirs.kernel_.k2.noise_level, rel=0.05)
    assert ours.hyperparameters_["lengthscale[0]"] == pytest.approx(theirs.kernel_.k1.k2.length_scale[0], rel=0.05)
    assert ours.hyperparameters_["lengthscale[1]"] <= 50.0
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=0.1)


def test_the_users_kernel_is_left_alone_cloned_searched_and_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (45, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=45)
    kernel = 1.0 * Matern([1.0, 1.0], (0.05, 20.0), nu=1.5) + WhiteKernel(0.1, "fixed")
    before = repr(kernel)
    gp = GPRegressor(kernel, random_state=0).fit(X, y)
    assert repr(kernel) == before
    assert gp.kernel is kernel
    assert clone(gp).kernel == kernel
    assert "noise" not in gp.hyperparameters_
    gp.save(tmp_path / "model")
    loaded = GPRegressor.load(tmp_path / "model")
    assert isinstance(loaded.kernel, gpytorch.kernels.Kernel)
    assert np.array_equal(loaded.predict(X, return_std=True)[1], gp.predict(X, return_std=True)[1])
    assert np.array_equal(loaded.theta_, gp.theta_)
    kernels = [1.0 * RBF() + WhiteKernel(), 1.0 * Matern(nu=0.5) + WhiteKernel()]
    search = GridSearchCV(GPRegressor(steps=5), {"kernel": kernels}, cv=3, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.5


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Exponentiation(RBF(), 2), "Cannot translate scikit-learn's Exponentiation. Supported are RBF"),
        (PairwiseKernel(), "Cannot translate scikit-learn's PairwiseKernel"),
        (CompoundKernel([RBF()]), "Cannot translate scikit-learn's CompoundKernel"),
        (Matern(nu=0.7), "Matern with nu=0.7. It has a closed form for 0.5, 1.5, 2.5 and inf"),
        (ExpSineSquared(), "ExpSineSquared for 2 inputs"),
        (RBF([1.0, 1.0, 1.0]), "RBF has 3 length scales. Expected one, or one for each of the 2"),
        (WhiteKernel(), "Expected a kernel beside the WhiteKernel"),
        (RBF() + WhiteKernel() + WhiteKernel(), "at most one WhiteKernel, which is the noise. Got 2"),
        (RBF() * WhiteKernel(), "WhiteKernel within a product, where it is no noise of the data"),
        (RBF() + 2.0 * WhiteKernel(), "WhiteKernel within a product"),
    ],
)
def test_what_cannot_be_translated(kernel: Any, words: str) -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    with pytest.raises(SettingError) as caught:
        GPRegressor(kernel).fit(X, X[:, 0])
    assert words in str(caught.value)


def test_noise_is_said_once() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    with pytest.raises(SettingError, match="Expected the noise to be said once"):
        GPRegressor(RBF() + WhiteKernel(), noise_variance=0.1).fit(X, X[:, 0])
    with pytest.raises(SettingError, match="noise that is learned"):
        GPRegressor(RBF() + WhiteKernel()).fit(X, X[:, 0], noise=0.1)


def test_sample_weight_is_pointed_to_noise() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    with pytest.raises(SettingError, match=r"takes no 'sample_weight': .* Pass noise=, the variance of each row"):
        GPRegressor().fit(X, X[:, 0], sample_weight=np.ones(9))
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        GPRegressor().fit(X, X[:, 0], weights=np.ones(9))
