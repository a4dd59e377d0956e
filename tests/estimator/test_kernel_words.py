"""Kernels in words: read, refused with what is wrong, and the kernel that they mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from rtgp._estimator.kernel_building import kernel_from_words
from rtgp._estimator.kernel_words import WORDS, Expression, Part, Together, parse
from rtgp._estimator.periods import likely_periods
from rtgp._estimator.regressor import GPRegressor
from rtgp.errors import SettingError

NAMES = ["lat", "lon", "day", "kind=a", "kind=b"]
X = np.random.default_rng(0).normal(size=(40, 5))
Y = np.sin(X[:, 2])


@pytest.mark.parametrize(
    "text, meant",
    [
        ("rbf", Part("rbf")),
        ("rbf+periodic( day )", Together("+", (Part("rbf"), Part("periodic", ("day",))))),
        ("matern32(lat, lon)", Part("matern32", ("lat", "lon"))),
        ("rbf(a) + rbf(b) * linear", Together("+", (Part("rbf", ("a",)), Together("*", (Part("rbf", ("b",)),
                                                                                       Part("linear")))))),
        ("(rbf + rq) * linear(a b)", Together("*", (Together("+", (Part("rbf"), Part("rq"))),
                                                    Part("linear", ("a b",))))),
        ("rbf('x + y', \"it's\")", Part("rbf", ("x + y", "it's"))),
        ("periodic(day, period=3.5)", Part("periodic", ("day",), 3.5)),
    ],
)  # fmt: skip
def test_what_is_read(text: str, meant: Expression) -> None:
    assert parse(text) == meant


def written(one: Expression) -> str:
    if isinstance(one, Part):
        inside = [f"'{name}'" for name in one.columns or ()] + ([f"period={one.period!r}"] if one.period else [])
        return one.word + (f"({', '.join(inside)})" if inside else "")
    return "(" + f" {one.sign} ".join(map(written, one.parts)) + ")"


names = st.lists(st.text(st.characters(exclude_characters="'", exclude_categories=["C", "Z"]), min_size=1), min_size=1,
                 max_size=3, unique=True)  # fmt: skip
leaves = st.builds(Part, st.sampled_from(WORDS), st.none() | names.map(tuple))
trees = st.recursive(leaves, lambda one: st.builds(
    Together, st.sampled_from("+*"), st.lists(one, min_size=2, max_size=3).map(tuple)), max_leaves=8)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(trees)
def test_what_is_written_is_read(tree: Expression) -> None:
    assert parse(written(tree)) == tree


@settings(max_examples=200, deadline=None)
@given(st.text("rbf+*(),='\" linear", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except SettingError as error:
        assert "cannot be read" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "expected a name before 'the end'"),
        ("rbf +", "expected a name before 'the end'"),
        ("perodic(day)", "there is no kernel 'perodic'"),
        ("rbf(lat", "expected ',' or ')' after 'lat'"),
        ("(rbf", "a bracket is not closed"),
        ("rbf)", "before ')'"),
        ("rbf(lat, lat)", "a column twice"),
        ("rbf('lat)", "a quote is not closed"),
        ("rbf(lat, period=3)", "period=3 of rbf"),
        ("periodic(day, period=-1)", "a positive one"),
        ("(" * 5000, "more than 100 brackets"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse(text)
    assert says in str(caught.value)
    assert "rbf + periodic(day)" in str(caught.value)  # what it should look like


def covariance(kernel: torch.nn.Module) -> np.ndarray:
    return kernel(torch.tensor(X, dtype=torch.float32)).to_dense().detach().numpy()


def test_the_kernel_that_is_meant() -> None:
    """The same matrix as one put together by hand from GPyTorch's classes, at the values it begins with."""
    text = "matern32(lat, lon) * rbf(day) + rq(kind) + linear(lat) + (rbf(lon) + rbf(day)) * periodic(day)"
    found = kernel_from_words(text, NAMES, X, Y, np.ones(5))
    parts = list(found.kernels)
    by_hand = np.zeros((40, 40))
    x = torch.tensor(X, dtype=torch.float32)

    def of(kernel: torch.nn.Module, columns: list[int], like: torch.nn.Module) -> np.ndarray:
        state = {name: value for name, value in like.state_dict().items() if name != "active_dims"}
        kernel.load_state_dict(state)
        return kernel(x[:, columns]).to_dense().detach().numpy()

    product, rq, linear, last = parts
    first, second = product.base_kernel.kernels
    scale = product.outputscale.item()
    by_hand += scale * of(MaternKernel(1.5, ard_num_dims=2), [0, 1], first) * of(RBFKernel(ard_num_dims=1), [2], second)
    by_hand += rq.outputscale.item() * of(RQKernel(ard_num_dims=2), [3, 4], rq.base_kernel)
    by_hand += of(LinearKernel(ard_num_dims=1), [0], linear)
    both, periodic = last.base_kernel.kernels
    inner = sum(one.outputscale.item() * of(RBFKernel(ard_num_dims=1), [column], one.base_kernel)
                for one, column in zip(both.kernels, [1, 2], strict=True))  # fmt: skip
    by_hand += last.outputscale.item() * inner * of(PeriodicKernel(ard_num_dims=1), [2], periodic)
    np.testing.assert_allclose(covariance(found), by_hand, rtol=1e-5, atol=1e-6)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(SettingError, match="the input 'town', which is not among those that are used: 'lat'"):
        kernel_from_words("rbf(town)", NAMES, X, Y, np.ones(5))


def test_periods_are_found_where_times_have_any_distances() -> None:
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 200, 400))
    y = np.sin(2 * np.pi * t / 7) + 0.5 * np.cos(2 * np.pi * t / 30) + 0.02 * t + 0.3 * rng.normal(size=400)
    first, second = likely_periods(t, y, 2)
    assert first == pytest.approx(7, rel=0.02)
    assert second == pytest.approx(30, rel=0.05)


def test_a_season_is_learned_and_goes_on(tmp_path: Path) -> None:
    """Beyond the data, where a kernel without a period knows nothing."""
    rng = np.random.default_rng(1)
    day = np.sort(rng.uniform(0, 100, 150))
    frame = pd.DataFrame({"day": day, "x": rng.normal(size=150)})
    y = 50 + 10 * np.sin(2 * np.pi * day / 9.3) + frame["x"] + 0.5 * rng.normal(size=150)
    new = pd.DataFrame({"day": np.linspace(100, 125, 60), "x": 0.0})
    truth = 50 + 10 * np.sin(2 * np.pi * new["day"] / 9.3)
    gp = GPRegressor(kernel="rbf(x) + periodic(day)", random_state=0).fit(frame, y)
    assert np.sqrt(np.mean((gp.predict(new) - truth) ** 2)) < 2.0
    assert {"rbf.lengthscale[x]", "periodic.lengthscale[day]", "period_length[day]"} <= set(gp.hyperparameters_)
    assert clone(gp).kernel == "rbf(x) + periodic(day)"
    gp.save(tmp_path)
    again = GPRegressor.load(tmp_path)
    np.testing.assert_array_equal(again.predict(new), gp.predict(new))
    assert (again.kernel, again.hyperparameters_) == (gp.kernel, gp.hyperparameters_)
    given = GPRegressor(kernel="rbf(x) + periodic(day, period=9)", random_state=0).fit(frame, y)
    assert given.log_marginal_likelihood_value_ == pytest.approx(gp.log_marginal_likelihood_value_, abs=0.5)


def test_without_names_columns_are_called_by_their_numbers() -> None:
    gp = GPRegressor(kernel="rbf(0) + linear(2)", steps=5).fit(X, Y)
    assert {"lengthscale[0]", "variance"} <= set(gp.hyperparameters_)
