"""Several outputs: each with a model of its own, or all with one; units, gaps, files, and what is refused."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_val_score
from sklearn.multioutput import MultiOutputRegressor

import rtgp
from rtgp._estimator import outputs
from rtgp._estimator.regressor import GPRegressor
from rtgp._objectives.reading import own_data
from rtgp.errors import InputError, SettingError, UnsupportedModelError
from rtgp.operators import DenseOperator


def data(n: int = 60, t: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    Y = np.column_stack([(10.0**k) * (np.sin((1 + k / 2) * X[:, k % 2]) + k) for k in range(t)])
    return X, Y + 0.1 * Y.std(0) * rng.normal(size=Y.shape)


NEW = np.random.default_rng(1).uniform(-2.5, 2.5, (7, 2))


def assert_equal_predictions(first: Any, second: Any, **tolerance: float) -> None:
    for kind in ({"return_std": True}, {"return_cov": True}):
        for a, b in zip(first.predict(NEW, **kind), second.predict(NEW, **kind), strict=True):
            np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 0.0, "atol": 0.0}))


class TestEach:
    def test_is_each_output_fitted_alone(self) -> None:
        X, Y = data()
        gp = GPRegressor(random_state=0).fit(X, Y)
        means, stds = gp.predict(NEW, return_std=True)
        _, covariances = gp.predict(NEW, return_cov=True)
        alone = [GPRegressor(random_state=0).fit(X, Y[:, k]) for k in range(3)]
        assert gp.n_outputs_ == 3
        assert alone[0].n_outputs_ == 1
        for k, one in enumerate(alone):
            mean, std = one.predict(NEW, return_std=True)
            assert np.array_equal(means[:, k], mean)
            assert np.array_equal(stds[:, k], std)
            assert np.array_equal(covariances[:, :, k], one.predict(NEW, return_cov=True)[1])
            assert gp.hyperparameters_[k] == one.hyperparameters_
            assert gp.hyperparameter_errors_[k] == one.hyperparameter_errors_
            assert gp.noise_variance_[k] == one.noise_variance_
        total = sum(one.log_marginal_likelihood_value_ for one in alone)
        assert gp.log_marginal_likelihood_value_ == pytest.approx(total)
        assert gp.score(X, Y) == pytest.approx(np.mean([one.score(X, Y[:, k]) for k, one in enumerate(alone)]))

    def test_gaps_are_left_out_of_their_own_output_alone(self) -> None:
        X, Y = data()
        rng = np.random.default_rng(3)
        Y[rng.random(Y.shape) < 0.3] = np.nan
        gp = GPRegressor(random_state=0).fit(X, Y)
        for k in range(3):
            rows = ~np.isnan(Y[:, k])
            one = GPRegressor(random_state=0).fit(X[rows], Y[rows, k])
            assert np.array_equal(gp.predict(NEW)[:, k], one.predict(NEW))
            assert np.array_equal(gp.predict(NEW, return_std=True)[1][:, k], one.predict(NEW, return_std=True)[1])

    def test_known_noise_of_rows_and_of_targets(self) -> None:
        X, Y = data()
        Y[4, 1] = np.nan
        each = np.tile([1e-2, 1.0, 1e2], (60, 1)) * np.linspace(0.5, 1.5, 60)[:, None]
        gp = GPRegressor(random_state=0).fit(X, Y, noise=each)
        rows = ~np.isnan(Y[:, 1])
        one = GPRegressor(random_state=0).fit(X[rows], Y[rows, 1], noise=each[rows, 1])
        assert np.array_equal(gp.predict(NEW)[:, 1], one.predict(NEW))
        same = GPRegressor(random_state=0).fit(X, Y[:, [0, 2]], noise=each[:, 0])
        other = GPRegressor(random_state=0).fit(X, Y[:, 2], noise=each[:, 0])
        assert np.array_equal(same.predict(NEW)[:, 1], other.predict(NEW))
        with pytest.raises(InputError, match=r"one for each target \(60, 3\). Got shape \(3,\)"):
            GPRegressor(steps=1).fit(X, Y, noise=[1.0, 2.0, 3.0])

    def test_models_on_the_same_rows_hold_one_tensor_of_inputs(self) -> None:
        X, Y = data()
        Y[0, 2] = np.nan
        gp = GPRegressor(random_state=0, steps=3).fit(X, Y)
        first, second, third = (own_data(model)[0] for model in gp.model_)
        assert first is second
        assert third is not first

    def test_no_more_factors_are_held_than_memory_is_meant_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        X, Y = data()
        gp = GPRegressor(random_state=0, steps=3).fit(X, Y)
        before = gp.predict(NEW)
        held = lambda: sum(made._cache is not None for one in gp.estimators_ for made in one._made)  # noqa: E731
        assert held() == 3
        monkeypatch.setattr(outputs, "DEFAULT", outputs.OutputSettings(kept=0))
        monkeypatch.setattr(outputs.in_turn, "__defaults__", (outputs.DEFAULT,))
        assert np.array_equal(gp.predict(NEW), before)
        assert held() == 0

    def test_multi_output_regressor_agrees(self) -> None:
        X, Y = data(t=2)
        wrapped = MultiOutputRegressor(GPRegressor(random_state=0)).fit(X, Y)
        assert np.array_equal(GPRegressor(random_state=0).fit(X, Y).predict(NEW), wrapped.predict(NEW))

    @pytest.mark.parametrize("method", ["svgp", "poe", "vecchia", "rff"])
    def test_every_method_takes_it(self, method: str) -> None:
        X, Y = data(t=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gp = GPRegressor(method=method, steps=3, random_state=0).fit(X, Y)
        assert gp.predict(NEW, return_std=True)[1].shape == (7, 2)

    def test_a_checkpoint_has_a_folder_for_each(self, tmp_path: Path) -> None:
        X, Y = data()
        first = GPRegressor(random_state=0).fit(X, Y, checkpoint=tmp_path)
        assert {folder.name for folder in tmp_path.iterdir()} >= {"output_1", "output_2", "output_3"}
        second = GPRegressor(random_state=0).fit(X, Y, checkpoint=tmp_path)
        assert_equal_predictions(first, second)

    def test_one_of_them_is_diagnosed(self) -> None:
        gp = GPRegressor(random_state=0, steps=3).fit(*data())
        with pytest.raises(UnsupportedModelError, match=r"Got 3 with a model each: .*gp\.estimators_\[0\]"):
            rtgp.diagnose(gp)

    def test_idle_columns_are_named_once(self) -> None:
        X, Y = data()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            GPRegressor(steps=2, random_state=0).fit(np.column_stack([X, np.ones(60)]), Y)
        assert sum("say nothing" in str(one.message) for one in seen) == 1


class TestShared:
    def test_agrees_with_scikit_learn(self) -> None:
        """The same model with a mean of zero: one kernel and noise, fitted to all outputs at once."""
        rng = np.random.default_rng(0)
        X = rng.uniform(-2, 2, (50, 1))
        Y = np.column_stack([np.sin(2 * X[:, 0]), np.cos(2 * X[:, 0])]) + 0.1 * rng.normal(size=(50, 2))
        Y -= Y.mean(0)
        kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
        theirs = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0).fit(X, Y)
        constant, lengthscale = theirs.kernel_.k1.k1.constant_value, theirs.kernel_.k1.k2.length_scale
        gp = GPRegressor(outputs="shared", standardize=False, random_state=0).fit(X, Y)
        found = gp.hyperparameters_
        assert found["lengthscale[0]"] == pytest.approx(lengthscale, rel=0.05)
        assert found["outputscale"] == pytest.approx(constant, rel=0.1)
        assert found["noise"] == pytest.approx(theirs.kernel_.k2.noise_level, rel=0.02)
        # Theirs has no mean: ours can only be better, by no more than two means are worth.
        gained = gp.log_marginal_likelihood_value_ - theirs.log_marginal_likelihood_value_
        assert -1e-3 < gained < 4.0
        mean, std = gp.predict(X[:9], return_std=True)
        their_mean, their_std = theirs.predict(X[:9], return_std=True)
        assert mean.shape == their_mean.shape
        assert std.shape == their_std.shape
        assert gp.predict(X[:9], return_cov=True)[1].shape == theirs.predict(X[:9], return_cov=True)[1].shape
        assert gp.sample_y(X[:9], 4).shape == theirs.sample_y(X[:9], 4).shape
        np.testing.assert_allclose(mean, their_mean, atol=0.05)
        np.testing.assert_allclose(std, their_std, rtol=0.05)

    @pytest.mark.parametrize("method", ["cholesky", "rr-cg"])
    def test_predictions_are_those_of_the_equations(self, method: str) -> None:
        X, Y = data()
        gp = GPRegressor(outputs="shared", method=method, random_state=0, dtype="float64").fit(X, Y)
        scaling, model = gp._preprocessing.scaling, gp.model_
        x, new = (gp._working_inputs(one) for one in (X, NEW))
        kernel = lambda a, b: model.covar_module(a, b).to_dense().detach().numpy()  # noqa: E731
        matrix = kernel(x, x) + gp.hyperparameters_["noise"] * np.eye(60)
        constants = model.mean_module.constant.detach().numpy()
        target = (Y - scaling.y_mean) / scaling.y_scale - constants
        mean = (kernel(new, x) @ np.linalg.solve(matrix, target) + constants) * scaling.y_scale + scaling.y_mean
        covariance = kernel(new, new) - kernel(new, x) @ np.linalg.solve(matrix, kernel(x, new))
        found, covariances = gp.predict(NEW, return_cov=True, include_noise=False)
        np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-6 * scaling.y_scale.max())
        for k in range(3):
            wanted = covariance * scaling.y_scale[k] ** 2
            np.testing.assert_allclose(covariances[:, :, k], wanted, rtol=1e-6, atol=1e-9 * scaling.y_scale[k] ** 2)
        assert np.allclose(gp.noise_variance_, gp.hyperparameters_["noise"] * scaling.y_scale**2)
        # log p(Y) in original units.
        sign, logdet = np.linalg.slogdet(matrix)
        quadratic = (target * np.linalg.solve(matrix, target)).sum()
        value = -0.5 * (3 * logdet + quadratic + 180 * np.log(2 * np.pi)) - 60 * np.log(scaling.y_scale).sum()
        gp.refine_log_marginal_likelihood(1e-3)
        assert sign > 0
        assert gp.log_marginal_likelihood_value_ == pytest.approx(value, abs=5e-3)
        assert gp.log_marginal_likelihood() == gp.log_marginal_likelihood_value_

    def test_the_outputs_units_do_not_matter(self) -> None:
        X, Y = data()
        first = GPRegressor(outputs="shared", random_state=0).fit(X, Y)
        second = GPRegressor(outputs="shared", random_state=0).fit(X, 1000.0 * Y + 5.0)
        for a, b in zip(first.predict(NEW, return_std=True), second.predict(NEW, return_std=True), strict=True):
            shift = 5.0 if a is first else 0.0
            np.testing.assert_allclose((b - shift) / 1000.0, a, rtol=1e-3, atol=6e-3)

    def test_samples_have_the_predicted_moments(self) -> None:
        """20,000 samples at three points: 9 means and standard deviations within 5 standard errors, a false alarm below
        2e-5."""
        X, Y = data()
        gp = GPRegressor(outputs="shared", random_state=0).fit(X, Y)
        drawn = gp.sample_y(NEW[:3], 20_000)
        mean, std = gp.predict(NEW[:3], return_std=True)
        assert drawn.shape == (3, 3, 20_000)
        assert (np.abs(drawn.mean(-1) - mean) < 5 * std / np.sqrt(20_000)).all()
        assert (np.abs(drawn.std(-1) / std - 1) < 5 / np.sqrt(40_000)).all()

    def test_standard_errors_shrink_with_the_outputs(self) -> None:
        """Of copies of one output: t times the information, so that errors are smaller by the root of t."""
        X, Y = data(t=1)
        one = GPRegressor(random_state=0, method="cholesky").fit(X, Y[:, 0])
        four = GPRegressor(outputs="shared", random_state=0, method="cholesky").fit(X, np.tile(Y, 4))
        for name in ("noise", "outputscale", "lengthscale[0]"):
            assert four.hyperparameters_[name] == pytest.approx(one.hyperparameters_[name], rel=0.02)
            assert four.hyperparameter_errors_[name] == pytest.approx(one.hyperparameter_errors_[name] / 2, rel=0.05)

    def test_gaps_known_noise_and_other_methods_are_refused(self) -> None:
        X, Y = data()
        gaps = Y.copy()
        gaps[3, 1] = np.nan
        gp = GPRegressor(outputs="shared")
        frame = pd.DataFrame(gaps, columns=["a", "b", "c"])
        with pytest.raises(InputError, match=r"Row 4 of output 'b' is missing .NaN.: take outputs='independent'"):
            gp.fit(X, frame)
        with pytest.raises(SettingError, match="with outputs='shared' one noise is learned"):
            gp.fit(X, Y, noise=np.ones(60))
        for method in ("svgp", "poe", "sggp", "vecchia", "rff", "ss-rff"):
            with pytest.raises(SettingError, match=r"takes one output at a time\. Got outputs='shared'"):
                clone(gp).set_params(method=method).fit(X, Y)
        with pytest.raises(UnsupportedModelError, match="one output for a diagnosis"):
            rtgp.diagnose(GPRegressor(outputs="shared", steps=3).fit(X, Y))

    def test_one_kernel_matrix_serves_all_outputs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Training on four outputs multiplies by K as often as on one, with three more columns in a product: at most
        1.5 times the columns in all, where four trainings take four times as many. The outputs are draws of one
        process, whose hyperparameters one of them alone has too."""
        rng = np.random.default_rng(5)
        X = rng.uniform(-2.0, 2.0, (400, 2))
        squares = ((X[:, None] - X) ** 2).sum(-1)
        Y = np.linalg.cholesky(np.exp(-0.5 * squares / 0.8**2) + 0.1 * np.eye(400)) @ rng.normal(size=(400, 4))
        asked: dict[int, list[int]] = {}
        product = DenseOperator.scaled_matmul
        for count in (1, 4):
            widths: list[int] = []

            def recorded(self: Any, v: Any, *args: Any, widths: list[int] = widths, **kwargs: Any) -> Any:
                widths.append(v.shape[1])
                return product(self, v, *args, **kwargs)

            with monkeypatch.context() as patch:
                patch.setattr(DenseOperator, "scaled_matmul", recorded)
                method = rtgp.RRCG(operator="dense")
                target = Y if count > 1 else Y[:, 0]
                GPRegressor(outputs="shared", method=method, steps=3, random_state=0).fit(X, target)
            asked[count] = widths
        assert 1.0 < sum(asked[4]) / sum(asked[1]) <= 1.5


class TestBoth:
    both = pytest.mark.parametrize("kind", ["independent", "shared"])

    @both
    def test_shapes(self, kind: str) -> None:
        X, Y = data()
        gp = GPRegressor(outputs=kind, random_state=0).fit(X, Y)
        assert gp.predict(NEW).shape == (7, 3)
        assert [part.shape for part in gp.predict(NEW, return_std=True)] == [(7, 3), (7, 3)]
        assert [part.shape for part in gp.predict(NEW, return_cov=True)] == [(7, 3), (7, 7, 3)]
        assert gp.sample_y(NEW, 5).shape == (7, 3, 5)
        assert gp.sample_y(NEW, 5, include_noise=False).shape == (7, 3, 5)
        assert gp.noise_variance_.shape == (3,)
        assert np.array_equal(gp.sample_y(NEW, 2, random_state=4), gp.sample_y(NEW, 2, random_state=4))
        variance = np.diagonal(gp.predict(NEW, return_cov=True)[1]).T
        np.testing.assert_allclose(np.sqrt(variance), gp.predict(NEW, return_std=True)[1], rtol=1e-5)

    @both
    def test_one_column_is_one_output(self, kind: str) -> None:
        X, Y = data(t=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gp = GPRegressor(outputs=kind, random_state=0).fit(X, Y)
        assert gp.predict(NEW).shape == (7,)
        assert np.array_equal(gp.predict(NEW), GPRegressor(random_state=0).fit(X, Y[:, 0]).predict(NEW))

    @both
    def test_pickled_cloned_and_saved(self, kind: str, tmp_path: Path) -> None:
        X, Y = data()
        frame = pd.DataFrame(X, columns=["north", "east"])
        gp = GPRegressor(outputs=kind, random_state=0).fit(frame, Y)
        gp.save(tmp_path / "model")
        loaded = GPRegressor.load(tmp_path / "model")
        new = pd.DataFrame(NEW, columns=["north", "east"])
        for again in (loaded, pickle.loads(pickle.dumps(gp))):
            for a, b in zip(again.predict(new, return_cov=True), gp.predict(new, return_cov=True), strict=True):
                assert np.array_equal(a, b)
            assert np.array_equal(again.sample_y(new, 2), gp.sample_y(new, 2))
            assert again.hyperparameters_ == gp.hyperparameters_
            assert again.hyperparameter_errors_ == gp.hyperparameter_errors_
            assert again.log_marginal_likelihood_value_ == gp.log_marginal_likelihood_value_
            assert np.array_equal(again.noise_variance_, gp.noise_variance_)
            assert again.get_params() == gp.get_params()
            assert again.n_outputs_ == 3
        assert clone(loaded).outputs == kind
        np.testing.assert_array_equal(loaded.fit(frame, Y).predict(new), gp.predict(new))

    def test_inputs_are_saved_once(self, tmp_path: Path) -> None:
        X, Y = data(n=300, t=4)
        one, four = (GPRegressor(steps=2, random_state=0).fit(X, target) for target in (Y[:, 0], Y))
        sizes = []
        for name, gp in (("one", one), ("four", four)):
            gp.save(tmp_path / name)
            sizes.append((tmp_path / name / "model.safetensors").stat().st_size)
        # Two columns of inputs and one of targets each would be four times as much.
        assert sizes[1] < 2.6 * sizes[0]

    def test_fitted_again_with_another_number_of_outputs(self) -> None:
        X, Y = data()
        gp = GPRegressor(random_state=0, steps=5)
        for target, shape in ((Y, (7, 3)), (Y[:, 0], (7,)), (Y[:, :2], (7, 2))):
            assert gp.fit(X, target).predict(NEW).shape == shape
        gp.set_params(outputs="shared").fit(X, Y)
        assert isinstance(gp.hyperparameters_, dict)
        assert gp.predict(NEW).shape == (7, 3)

    @both
    def test_cross_validation(self, kind: str) -> None:
        X, Y = data()
        assert cross_val_score(GPRegressor(outputs=kind, random_state=0, steps=10), X, Y, cv=3).min() > 0.5

    def test_refining_the_likelihood_of_each(self) -> None:
        X, Y = data(n=200)
        method = rtgp.RRCG(operator="dense")
        gp = GPRegressor(method=method, random_state=0, steps=5).fit(X, Y)
        gp.refine_log_marginal_likelihood(0.3)
        assert gp.log_marginal_likelihood_error_ <= 0.3

    @pytest.mark.parametrize("kind", ["each", None, 3])
    def test_a_setting_that_is_none(self, kind: Any) -> None:
        with pytest.raises(SettingError, match="'outputs' parameter of GPRegressor must be 'independent'"):
            GPRegressor(outputs=kind).fit(*data())

    def test_targets_that_cannot_be_learnt(self) -> None:
        X, Y = data()
        for change, words in (
            (lambda Y: np.column_stack([Y, np.full(60, 3.0)]), "Output 'y4' is 3 in all 60 rows"),
            (lambda Y: np.column_stack([Y, np.full(60, np.nan)]), "at least two targets of output 'y4'. Got 0"),
            (lambda Y: np.where(Y[5, 1] == Y, np.inf, Y), "row 6 of output 'y2' is inf"),
            (lambda Y: np.column_stack([Y, ["text"] * 60]), "Expected targets as numbers"),
        ):
            with pytest.raises(InputError, match=words):
                GPRegressor(steps=1).fit(X, change(Y.copy()))
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            GPRegressor(steps=1).fit(X[:50], Y)
