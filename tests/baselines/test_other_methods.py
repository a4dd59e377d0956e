"""All nine methods as one argument of GPRegressor; what SVGP, POE and sgGP share with the others, and what not."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

import rtgp
from gp_models import airports, make
from rtgp._estimator.regressor import GPRegressor
from rtgp._methods import METHODS
from rtgp.errors import InputError, SettingError, UnsupportedModelError

NINE = ("cholesky", "cg", "rr-cg", "rff", "ss-rff", "svgp", "poe", "sggp", "vecchia")
THREE = {"svgp": rtgp.SVGP(inducing=25, batch_size=40), "poe": rtgp.POE(expert_size=50), "sggp": rtgp.SGGP(5, 40)}


def data(n: int = 120, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, d))
    return X, 100.0 + 20.0 * np.sin(2.0 * X[:, 0]) + 5.0 * X[:, -1] + 2.0 * rng.normal(size=n)


NEW = np.random.default_rng(1).uniform(-2.0, 2.0, (200, 2))
TRUE = 100.0 + 20.0 * np.sin(2.0 * NEW[:, 0]) + 5.0 * NEW[:, 1]


@pytest.fixture(scope="module")
def fitted() -> dict[str, GPRegressor]:
    return {name: GPRegressor(method=method, steps=25, random_state=0).fit(*data()) for name, method in THREE.items()}


def test_all_nine_are_there() -> None:
    assert set(METHODS) == set(NINE)


@pytest.mark.filterwarnings("ignore::rtgp.errors.PrecisionWarning")  # 120 points with little noise, in float32
@pytest.mark.filterwarnings("ignore::rtgp.errors.ApproximationWarning")  # Fourier features, of the rough kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["rbf", "matern32", "matern52"])
@pytest.mark.parametrize("method", NINE)
def test_every_method_every_kernel_both_dtypes(method: str, kernel: str, dtype: str) -> None:
    gp = GPRegressor(method=method, kernel=kernel, dtype=dtype, steps=12, random_state=0).fit(*data())
    mean, std = gp.predict(NEW, return_std=True)
    # The noise has a standard deviation of 2, the function one of 15.
    assert np.sqrt(np.mean((mean - TRUE) ** 2)) < 5.0
    assert 1.5 < np.median(std) < 11.0  # a few steps only
    assert math.isfinite(gp.log_marginal_likelihood_value_)
    goes_over = method == "cholesky" or (method, kernel) == ("rr-cg", "matern32")  # the only one that has to
    assert gp.dtype_ == ("float64" if goes_over else dtype)
    assert set(gp.hyperparameters_) == {"noise", "mean", "outputscale", "lengthscale[0]", "lengthscale[1]"}
    assert gp.history_.columns[:2] == ("step", "loss")


@pytest.mark.parametrize("method", THREE)
def test_a_full_fit_predicts_as_well_as_the_exact_one(method: str) -> None:
    """Defaults, on data as easy for each of the three as for Cholesky."""
    X, y = data(160)
    y = y - 5.0 * X[:, 1] + 10.0 * np.cos(2.0 * X[:, 1])  # no flat ridge of long lengthscales
    exact = GPRegressor(method="cholesky", random_state=0).fit(X, y)
    gp = GPRegressor(method=method, random_state=0).fit(X, y)
    difference, std = np.abs(gp.predict(NEW) - exact.predict(NEW)), exact.predict(NEW, True, include_noise=False)[1]
    assert np.sqrt(np.mean((difference / std) ** 2)) < (1.0 if method == "sggp" else 0.2)
    assert gp.noise_variance_ == pytest.approx(exact.noise_variance_, rel=0.25)
    if method != "sggp":
        assert gp.log_marginal_likelihood_value_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=2.0)
    if method == "svgp":
        assert gp.log_marginal_likelihood_value_ < exact.log_marginal_likelihood_value_


@pytest.mark.parametrize("method", THREE)
def test_same_seed_same_bits_and_the_global_generators_are_left_alone(method: str) -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    found = []
    for seed in (3, 3, 4):
        gp = GPRegressor(method=THREE[method], steps=8, random_state=seed).fit(*data())
        found.append((*gp.predict(NEW, return_std=True), gp.log_marginal_likelihood_value_))
    assert all(np.array_equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    assert not np.array_equal(found[0][0], found[2][0])
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("method", THREE)
def test_results_are_complete(fitted: dict[str, GPRegressor], method: str) -> None:
    gp = fitted[method]
    rows = gp.history_.rows
    assert len(rows) == gp.fit_result_.steps == 25
    assert [row["step"] for row in rows] == list(range(25))
    assert all(math.isfinite(float(row["loss"])) and row["seconds"] > 0 for row in rows)
    assert set(gp.hyperparameters_) <= set(rows[0])
    assert gp.hyperparameter_errors_.keys() == gp.hyperparameters_.keys()
    assert all(math.isnan(error) for error in gp.hyperparameter_errors_.values())
    assert gp.log_marginal_likelihood_value_ == pytest.approx(
        -120 * (gp.fit_result_.loss + math.log(gp._preprocessing.scaling.y_scale))
    )
    latent = gp.predict(NEW, return_std=True, include_noise=False)[1]
    np.testing.assert_allclose(latent**2 + gp.noise_variance_, gp.predict(NEW, return_std=True)[1] ** 2, rtol=1e-6)
    assert np.array_equal(pickle.loads(pickle.dumps(gp)).predict(NEW), gp.predict(NEW))
    assert gp.method_ == THREE[method]


def test_joint_predictions(fitted: dict[str, GPRegressor]) -> None:
    for method in ("svgp", "sggp"):
        gp = fitted[method]
        covariance = gp.predict(NEW[:6], return_cov=True)[1]
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), gp.predict(NEW[:6], return_std=True)[1], rtol=1e-4)
        assert gp.sample_y(NEW[:6], 3).shape == (6, 3)
    with pytest.raises(UnsupportedModelError, match="no joint covariance"):
        fitted["poe"].sample_y(NEW[:3])
    with pytest.raises(UnsupportedModelError, match="no joint covariance"):
        fitted["poe"].predict(NEW[:3], return_cov=True)


# Saved models.


def same(loaded: GPRegressor, gp: GPRegressor) -> None:
    for a, b in zip(loaded.predict(NEW, return_std=True), gp.predict(NEW, return_std=True), strict=True):
        assert np.array_equal(a, b)
    assert repr(loaded.fit_result_) == repr(gp.fit_result_)
    assert repr(loaded.history_.rows) == repr(gp.history_.rows)
    assert loaded.get_params() == gp.get_params()
    assert loaded.hyperparameters_ == gp.hyperparameters_
    for name in ("method_", "method_reason_", "dtype_", "log_marginal_likelihood_value_", "noise_variance_", "device_"):
        assert getattr(loaded, name) == getattr(gp, name)


@pytest.mark.parametrize("settings", [{}, {"dtype": "float64", "kernel": "matern32", "standardize": False}])
@pytest.mark.parametrize("method", THREE)
def test_round_trip(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    gp = GPRegressor(method=THREE[method], steps=4, random_state=0, **settings).fit(*data())
    gp.save(tmp_path)
    loaded = GPRegressor.load(tmp_path)
    same(loaded, gp)
    assert np.array_equal(loaded.fit(*data()).predict(NEW), gp.predict(NEW))  # it can be trained again, the same


@pytest.mark.parametrize("method", THREE)
def test_round_trip_with_known_noise_and_a_kernel_of_ones_own(method: str, tmp_path: Path) -> None:
    X, y = data()
    kernel = ScaleKernel(RBFKernel(active_dims=(0,))) + LinearKernel() * MaternKernel(nu=1.5)
    gp = GPRegressor(kernel=kernel, method=THREE[method], steps=4, random_state=0).fit(X, y, noise=np.full(120, 4.0))
    assert gp.noise_variance_ == pytest.approx(4.0)
    assert "noise" not in gp.hyperparameters_
    gp.save(tmp_path)
    loaded = GPRegressor.load(tmp_path)
    for a, b in zip(loaded.predict(NEW, return_std=True), gp.predict(NEW, return_std=True), strict=True):
        assert np.array_equal(a, b)
    assert str(loaded.kernel) == str(kernel)


def test_a_variational_model_is_saved_without_the_data(fitted: dict[str, GPRegressor], tmp_path: Path) -> None:
    fitted["svgp"].save(tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["content"]["family"] == "variational"
    from safetensors.torch import load_file

    assert not {name for name, t in load_file(tmp_path / content["tensors"]).items() if 120 in t.shape}


def test_a_model_of_the_older_format_still_loads(tmp_path: Path) -> None:
    """Version 1 had no families."""
    from rtgp._persistence import folder

    gp = GPRegressor(steps=3, random_state=0).fit(*data())
    gp.save(tmp_path)
    path = tmp_path / "model.json"
    record = json.loads(path.read_text())
    assert record["version"] == 2
    record["version"] = 1
    del record["content"]["family"]
    record["checksum"] = folder._checksum(record, (tmp_path / record["tensors"]).read_bytes())
    path.write_text(json.dumps(record))
    same(GPRegressor.load(tmp_path), gp)


@pytest.mark.parametrize(
    "method, change, words",
    [
        ("svgp", {"family": "magic"}, "unknown family of models 'magic'"),
        ("svgp", {"family": "exact"}, "damaged"),
        ("svgp", {"jitter": -1.0}, "a jitter of -1"),
        ("poe", {"family": "variational"}, "damaged"),
        ("poe", {"family": "exact"}, "training inputs of shape"),
    ],
)
def test_damaged_families(
    fitted: dict[str, GPRegressor], method: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    from rtgp._persistence import folder

    fitted[method].save(tmp_path)
    path = tmp_path / "model.json"
    record = json.loads(path.read_text())
    record["content"] |= change
    record["checksum"] = folder._checksum(record, (tmp_path / record["tensors"]).read_bytes())
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=words):
        GPRegressor.load(tmp_path)


# Bad input.


def test_defaults_clamp_to_the_data_and_say_so() -> None:
    X, y = data(12)
    for method, words in (
        ("svgp", "as many inducing points as rows, 12"),
        ("poe", "one expert of all 12 rows"),
        ("sggp", "the 11 neighbours there are"),
    ):
        gp = GPRegressor(method=method, steps=2, random_state=0).fit(X, y)
        assert gp.method_reason_ == f"asked for; {words}"
        assert np.isfinite(gp.predict(X)).all()
    assert GPRegressor(method=rtgp.POE(6), steps=2, random_state=0).fit(X, y).method_reason_ == "asked for"


@pytest.mark.parametrize(
    "method, words",
    [
        (
            rtgp.SVGP(inducing=121),
            r"'inducing' parameter of SVGP must be at most the number of points\. Got 121 for 120",
        ),
        (rtgp.SVGP(batch_size=500), r"'batch_size' parameter of SVGP must be at most .* Got 500 for 120"),
        (rtgp.POE(expert_size=1024), r"'expert_size' parameter of POE must be at most .* Got 1,024 for 120"),
        (rtgp.SGGP(neighbours=120), r"'neighbours' parameter of SGGP must be below the number of points\. Got 120 for"),
    ],
)
def test_explicit_sizes_beyond_the_data(method: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        GPRegressor(method=method).fit(*data())


@pytest.mark.parametrize(
    "make_method, words",
    [
        (lambda: rtgp.SVGP(inducing=0), "'inducing' parameter of SVGP must be a positive integer or None. Got 0"),
        (lambda: rtgp.SVGP(batch_size=1.5), "'batch_size' parameter of SVGP"),
        (lambda: rtgp.SVGP(epochs=None), "'epochs' parameter of SVGP must be a positive integer. Got None"),
        (lambda: rtgp.POE(expert_size=True), "'expert_size' parameter of POE"),
        (lambda: rtgp.POE(expert_size=1), "'expert_size' parameter of POE must be at least 2"),
    ],
)
def test_settings_out_of_range(make_method: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        make_method()


@pytest.mark.parametrize("method", ["svgp", "poe"])
def test_models_of_their_own_are_refused_where_a_model_is_given(method: str) -> None:
    x, y = airports(20)
    model = make(x, y)
    for call in (
        lambda: rtgp.MarginalLogLikelihood(model.likelihood, model, method),
        lambda: rtgp.fit(model, model.likelihood, x, y, method=THREE[method]),
    ):
        with pytest.raises(SettingError, match=r"is a model of its own.*rtgp\.GPRegressor\(method="):
            call()


@pytest.mark.parametrize("method", ["svgp", "poe"])
def test_what_these_two_cannot_do(method: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be checkpointed"):
        GPRegressor(method=method, random_state=0).fit(*data(20), checkpoint=tmp_path)
    with pytest.raises(SettingError, match="'steps' parameter"):
        GPRegressor(method=method, steps=0).fit(*data(20))
    with pytest.raises(SettingError, match="'learning_rate' parameter"):
        GPRegressor(method=method, learning_rate=-1.0).fit(*data(20))
    gp = GPRegressor(method=method, steps=1, random_state=0).fit(*data(20))
    with pytest.raises(UnsupportedModelError, match="ExactGP"):
        rtgp.diagnose(gp)


@pytest.mark.parametrize("method", THREE)
def test_repeated_and_few_rows(method: str) -> None:
    """Equal rows, as in two of the paper's sets, and no more rows than a fit needs."""
    X, y = data(30)
    repeated = GPRegressor(method=method, steps=5, random_state=0).fit(np.tile(X, (4, 1)), np.tile(y, 4))
    assert np.isfinite(repeated.predict(NEW)).all()
    few = {"svgp": rtgp.SVGP(inducing=1), "poe": rtgp.POE(expert_size=2), "sggp": rtgp.SGGP(neighbours=1)}
    assert np.isfinite(GPRegressor(method=few[method], steps=3, random_state=0).fit(X[:3], y[:3]).predict(NEW)).all()
    if method == "svgp":
        assert len(repeated.model_.inducing_points) == 30
        assert "30 inducing points: the rows themselves" in repeated.fit_result_.start
        more = GPRegressor(method=rtgp.SVGP(60), steps=3, random_state=0).fit(np.tile(X, (4, 1)), np.tile(y, 4))
        assert len(more.model_.inducing_points) <= 30  # different rows


def test_large_units(tmp_path: Path) -> None:
    """Without standardising, the jitter of SVGP is in units of the target."""
    X, y = data()
    gp = GPRegressor(method=rtgp.SVGP(40), steps=30, random_state=0, standardize=False, dtype="float64").fit(X, 1e4 * y)
    assert gp.score(X, 1e4 * y) > 0.95
    frame = pd.DataFrame(X, columns=["a", "b"])
    assert GPRegressor(method="poe", steps=2).fit(frame, y).feature_names_in_.tolist() == ["a", "b"]


# The paper's table (elevators, RMSE and NLL in units of the training target's standard deviation).


def predicted_std(gp: GPRegressor, X: np.ndarray) -> np.ndarray:
    """Of observations. With 10,623 rows a Cholesky factor gives 3,320 variances sooner than "auto", which is CG."""
    if gp.method_ != rtgp.SGGP():
        return gp.predict(X, return_std=True)[1]
    at = rtgp.posterior(gp.model_, gp.likelihood_, method="cholesky")
    variance = at.variance(gp._new_inputs(X), include_noise=True)
    return gp._preprocessing.scaling.unscale_std(variance.double().sqrt().numpy())


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("method, rmse, nll", [("svgp", 0.376, 0.442), ("poe", 0.379, 0.469), ("sggp", 0.362, 0.426)])
def test_elevators(method: str, rmse: float, nll: float, real_data: Path) -> None:
    parts = rtgp.datasets.load("elevators", data_dir=real_data).split(10)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Input columns that say nothing")
        gp = GPRegressor(method=method, random_state=0).fit(parts.train.X, parts.train.y)
    mean, std = gp.predict(parts.test.X), predicted_std(gp, parts.test.X)
    z = (parts.test.y - mean) / std
    assert np.sqrt(np.mean((parts.test.y - mean) ** 2)) < 1.05 * rmse
    assert np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2.0 * np.pi)) < nll + 0.03  # the noise included
    assert 0.85 < np.mean(np.abs(z) < 1.645) < 0.97  # of 90%
