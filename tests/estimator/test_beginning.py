"""Starting values, bounds and warm starts of GPRegressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pytest
from sklearn.base import clone

from rtgp._estimator.regressor import GPRegressor
from rtgp.errors import SettingError


def data(n: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (n, 3))
    return X, 10.0 * np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=n)


@pytest.mark.parametrize("method", ["cholesky", "rr-cg", "svgp"])
def test_bounds_hold_and_bind(method: str) -> None:
    """Without bounds the lengthscale of the idle input is large and the noise small; both end at their bounds."""
    X, y = data()
    free = GPRegressor(random_state=0).fit(X, y).hyperparameters_
    assert free["lengthscale[2]"] > 5.0
    assert free["noise"] < 0.01
    gp = GPRegressor(
        method=method, random_state=0, lengthscale_bounds=([0.1, 0.2, 0.3], 5.0), outputscale_bounds=(0.1, 0.5),
        noise_bounds=(0.02, 0.5), steps=60 if method == "svgp" else None,
    ).fit(X, y)  # fmt: skip
    found = gp.hyperparameters_
    low, high = [0.1, 0.2, 0.3], 5.0
    for k in range(3):
        assert low[k] <= found[f"lengthscale[{k}]"] <= high
    assert 0.1 <= found["outputscale"] <= 0.5
    assert 0.02 - 1e-6 <= found["noise"] <= 0.5
    if method != "svgp":  # which is not at its end
        assert found["lengthscale[2]"] == pytest.approx(5.0, rel=0.02)
        assert found["noise"] == pytest.approx(0.02, rel=0.02)


def test_a_lower_bound_alone() -> None:
    X, y = data()
    gp = GPRegressor(random_state=0, lengthscale_bounds=(3.0, np.inf), noise_bounds=(0.5, np.inf)).fit(X, y)
    assert min(value for name, value in gp.hyperparameters_.items() if "lengthscale" in name) >= 3.0
    assert gp.hyperparameters_["noise"] == pytest.approx(0.5, rel=0.02) or gp.hyperparameters_["noise"] > 0.5


def test_fixed_values_stay() -> None:
    X, y = data()
    gp = GPRegressor(
        random_state=0,
        lengthscale=[0.5, 1.0, 2.0],
        lengthscale_bounds="fixed",
        noise_variance=0.07,
        noise_bounds="fixed",
    ).fit(X, y)
    assert set(gp.hyperparameters_) == {"outputscale", "mean"}
    assert gp.kernel_.base_kernel.lengthscale.detach().numpy() == pytest.approx(np.array([[0.5, 1.0, 2.0]]))
    assert gp.noise_variance_ == pytest.approx(0.07 * np.mean((y - y.mean()) ** 2))


def test_starting_values_are_where_training_begins() -> None:
    X, y = data()
    gp = GPRegressor(
        method="cholesky", random_state=0, steps=1, lengthscale=[0.3, 0.4, 0.5], outputscale=2.0, noise_variance=0.2
    ).fit(X, y)
    first = gp.history_.rows[0]
    assert [first[f"lengthscale[{k}]"] for k in range(3)] == pytest.approx([0.3, 0.4, 0.5])
    assert first["outputscale"] == pytest.approx(2.0)
    assert first["noise"] == pytest.approx(0.2)


def test_one_value_for_each_column_leaves_out_idle_ones() -> None:
    X, y = data()
    wide = np.column_stack([X[:, 0], np.ones(80), X[:, 1:]])
    settings = {"lengthscale": [0.3, 9.0, 0.4, 0.5], "lengthscale_bounds": ([0.1, 8.0, 0.1, 0.1], [1.0, 9.5, 2.0, 3.0])}
    with pytest.warns(UserWarning, match="constant"):
        gp = GPRegressor(method="cholesky", random_state=0, **settings).fit(wide, y)
    assert gp.hyperparameters_["lengthscale[0]"] <= 1.0
    assert gp.hyperparameters_["lengthscale[3]"] <= 3.0
    assert [gp.history_.rows[0][f"lengthscale[{k}]"] for k in (0, 2, 3)] == pytest.approx([0.3, 0.4, 0.5])


def test_a_default_start_outside_the_bounds_is_moved_inside() -> None:
    X, y = data()
    for bounds in ((1e-3, 1e-2), (50.0, 60.0)):
        gp = GPRegressor(method="cholesky", random_state=0, steps=2, lengthscale_bounds=bounds, noise_bounds=bounds)
        first = gp.fit(X, y).history_.rows[0]
        assert bounds[0] < first["lengthscale[0]"] < bounds[1]
        assert bounds[0] < first["noise"] < bounds[1]


def test_bounds_are_saved(tmp_path: Path) -> None:
    X, y = data()
    for k, settings in enumerate(
        (
            {"lengthscale_bounds": (0.1, 2.0), "noise_bounds": (1e-3, 0.3)},
            {"lengthscale_bounds": (0.1, [1.0, 2.0, 3.0]), "lengthscale": [0.2, 0.3, 0.4]},
            {"outputscale_bounds": "fixed", "outputscale": 2.0, "noise_bounds": (1e-3, np.inf)},
            {"noise_bounds": "fixed", "noise_variance": 0.1},
            {"lengthscale_bounds": (np.array([0.1, 0.2, 0.3]), np.inf), "warm_start": True},
        )
    ):
        gp = GPRegressor(random_state=0, **settings).fit(X, y)
        gp.save(tmp_path / str(k))
        loaded = GPRegressor.load(tmp_path / str(k))
        assert np.array_equal(loaded.predict(X, return_std=True)[1], gp.predict(X, return_std=True)[1])
        assert loaded.hyperparameters_ == gp.hyperparameters_
        assert clone(loaded).fit(X, y).hyperparameters_ == gp.hyperparameters_
        assert np.array_equal(loaded.theta_, gp.theta_)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lengthscale": 0.0}, "'lengthscale' parameter .* positive number, or one for each of the 3 input columns"),
        ({"lengthscale": [1.0, 2.0]}, r"Got \[1.0, 2.0\] instead"),
        ({"outputscale": [1.0]}, "'outputscale' parameter of GPRegressor must be a positive number"),
        ({"noise_variance": "small"}, "'noise_variance' parameter"),
        ({"lengthscale_bounds": (1.0, 1.0)}, r"'fixed' or a pair \(low, high\) with 0 <= low < high"),
        ({"lengthscale_bounds": (1.0, 2.0, 3.0)}, "'lengthscale_bounds' parameter"),
        ({"lengthscale_bounds": (-1.0, 2.0)}, "'lengthscale_bounds' parameter"),
        ({"outputscale_bounds": "free"}, "'outputscale_bounds' parameter"),
        ({"noise_bounds": 3.0}, "'noise_bounds' parameter"),
        ({"noise_bounds": (np.nan, 1.0)}, "'noise_bounds' parameter"),
        ({"lengthscale": 9.0, "lengthscale_bounds": (1.0, 2.0)}, r"'lengthscale' .* must lie between its bounds"),
        (
            {"kernel": gpytorch.kernels.RBFKernel(), "lengthscale": 2.0},
            "belong to a kernel by name, such as kernel='rbf'. Got a RBFKernel",
        ),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        GPRegressor(**settings).fit(*data())


def test_noise_is_said_once() -> None:
    X, y = data()
    with pytest.raises(SettingError, match="noise that is learned"):
        GPRegressor(noise_bounds=(0.1, 1.0)).fit(X, y, noise=np.ones(80))


def test_noise_bounds_go_with_a_kernel_object() -> None:
    X, y = data()
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=3))
    gp = GPRegressor(kernel, noise_bounds=(0.3, 1.0), random_state=0).fit(X, y)
    assert 0.3 <= gp.hyperparameters_["noise"] <= 1.0


class TestWarmStart:
    @pytest.mark.parametrize("method", ["cholesky", "rr-cg"])
    def test_goes_on_from_the_last_fit(self, method: str) -> None:
        X, y = data()
        gp = GPRegressor(method=method, random_state=0, warm_start=True).fit(X, y)
        before, steps = gp.hyperparameters_, gp.fit_result_.steps
        gp.fit(X[:-1], y[:-1])
        first = gp.history_.rows[0]
        if method == "cholesky":  # by RR-CG a fit on a subset may be the better start, and chance decides on the steps
            # In working units, which the last row hardly changes.
            assert all(first[name] == pytest.approx(value, rel=1e-4) for name, value in before.items())
            assert gp.fit_result_.steps <= steps

    def test_not_without_it(self) -> None:
        X, y = data()
        gp = GPRegressor(random_state=0)
        first = gp.fit(X, y).hyperparameters_
        assert gp.fit(X, y).hyperparameters_ == first
        assert gp.history_.rows[0]["lengthscale[0]"] == pytest.approx(3**0.5)

    def test_other_columns_kernels_and_outputs_begin_anew(self) -> None:
        X, y = data()
        gp = GPRegressor(random_state=0, warm_start=True).fit(X, y)
        gp.fit(X[:, :2], y)
        assert gp.history_.rows[0]["lengthscale[0]"] == pytest.approx(2**0.5)
        gp.fit(X, np.column_stack([y, X[:, 0]]))
        gp.fit(X, np.column_stack([y, X[:, 0]]))
        assert gp.history_[0].rows[0]["lengthscale[0]"] != pytest.approx(3**0.5)
        gp.set_params(kernel=gpytorch.kernels.LinearKernel()).fit(X, y)
        assert "variance" in gp.hyperparameters_

    def test_of_outputs_that_share_a_model(self) -> None:
        X, y = data()
        Y = np.column_stack([y, X[:, 0]])
        gp = GPRegressor(outputs="shared", random_state=0, warm_start=True).fit(X, Y)
        before = gp.hyperparameters_
        gp.fit(X, Y)
        assert all(gp.history_.rows[0][name] == pytest.approx(value, rel=1e-4) for name, value in before.items())

    def test_values_outside_new_bounds_are_not_taken_up(self) -> None:
        X, y = data()
        gp = GPRegressor(random_state=0, warm_start=True).fit(X, y)
        gp.set_params(noise_bounds=(0.3, 0.6)).fit(X, y)
        assert 0.3 <= gp.history_.rows[0]["noise"] <= 0.6
