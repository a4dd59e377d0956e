"""Dataset: validation, subsets, splits and the scaling that can be undone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.tries import examples
from rtgp.datasets import Dataset, Scaling
from rtgp.errors import InputError, RTGPError, SettingError


def make(n: int = 100, d: int = 3, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.normal(5.0, 3.0, (n, d)), rng.normal(-2.0, 10.0, n), name="toy")


def test_stores_float64_and_names_the_columns() -> None:
    data = Dataset(np.ones((4, 2), dtype=np.float32), np.arange(4))
    assert data.X.dtype == data.y.dtype == np.float64
    assert data.feature_names == ("x1", "x2")
    assert len(data) == 4
    assert "n=4, d=2" in repr(data)


@pytest.mark.parametrize(
    "X, y, says",
    [
        (np.zeros(4), np.zeros(4), r"X of shape \(4,\)"),
        (np.zeros((4, 2)), np.zeros((4, 1)), r"y of shape \(4, 1\)"),
        (np.zeros((4, 2)), np.zeros(3), "same n"),
        (np.zeros((0, 2)), np.zeros(0), "at least one row"),
        (np.zeros((4, 0)), np.zeros(4), "one input column"),
        ([["a", "b"]], [1.0], "X must hold numbers"),
        ([[1.0], [2.0, 3.0]], [1.0, 2.0], "rectangular"),
    ],
)
def test_refuses_wrong_shapes(X: object, y: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Dataset(X, y)  # type: ignore[arg-type]


@pytest.mark.parametrize("value, says", [(np.nan, "is missing"), (np.inf, "is inf"), (-np.inf, "is -inf")])
def test_refuses_what_is_not_finite_naming_row_and_column(value: float, says: str) -> None:
    X = np.zeros((5, 2))
    X[3, 1] = value
    with pytest.raises(InputError, match=rf"row 4, column 'b' {says}"):
        Dataset(X, np.zeros(5), ("a", "b"))
    y = np.zeros(5)
    y[0] = value
    with pytest.raises(RTGPError, match=rf"row 1, column 'price' {says}"):
        Dataset(np.zeros((5, 2)), y, target_name="price")


def test_refuses_a_wrong_number_of_names() -> None:
    with pytest.raises(InputError, match="1 names for 2 columns"):
        Dataset(np.zeros((3, 2)), np.zeros(3), ("a",))


@given(n=st.integers(5, 3000), seed=st.integers(0, 1000))
@examples(40)
def test_split_is_a_partition_64_16_20(n: int, seed: int) -> None:
    data = Dataset(np.arange(n, dtype=np.float64)[:, None], np.arange(n, dtype=np.float64))
    parts = data.split(seed)
    assert [len(part) for part in parts] == [n * 64 // 100, n * 80 // 100 - n * 64 // 100, n - n * 80 // 100]
    together = np.concatenate([part.original().y for part in parts])
    np.testing.assert_allclose(np.sort(together), data.y, atol=1e-9)


def test_split_repeats_with_the_seed_and_changes_with_it() -> None:
    data = make()
    np.testing.assert_array_equal(data.split(1).test.X, data.split(1).test.X)
    assert not np.array_equal(data.split(1).test.X, data.split(2).test.X)


def test_split_standardises_on_the_training_part_only() -> None:
    data = make(500)
    train, _, test = data.split(0)
    np.testing.assert_allclose(train.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(train.X.std(axis=0), 1, atol=1e-12)
    assert abs(train.y.mean()) < 1e-12
    assert train.y.std() == pytest.approx(1)
    raw = data.split(0, standardise=False)
    assert raw.test.scaling is None
    np.testing.assert_allclose(test.X, (raw.test.X - raw.train.X.mean(axis=0)) / raw.train.X.std(axis=0))
    assert abs(test.X.mean()) > 1e-6  # the test part has its own mean, which was not looked at


def test_a_target_far_away_in_the_test_part_does_not_move_the_scaling() -> None:
    data = make(200)
    last = np.random.default_rng(0).permutation(200)[-1]  # a row of the test part
    moved = data.y.copy()
    moved[last] = 1e9
    one, two = data.split(0), Dataset(data.X, moved).split(0)
    assert one.train.scaling is not None
    assert two.train.scaling is not None
    assert one.train.scaling.y_mean == two.train.scaling.y_mean
    assert two.test.y.max() > 1e6


def test_scaling_is_kept_and_undone() -> None:
    data = make()
    test, raw = data.split(3).test, data.split(3, standardise=False).test
    np.testing.assert_allclose(test.original().X, raw.X, rtol=1e-12)
    np.testing.assert_allclose(test.original().y, raw.y, rtol=1e-12)
    scaling = test.scaling
    assert scaling is not None
    np.testing.assert_allclose(scaling.unscale_target(test.y), raw.y, rtol=1e-12)
    np.testing.assert_allclose(scaling.scale_target(raw.y), test.y, rtol=1e-12)
    np.testing.assert_allclose(scaling.scale_inputs(raw.X), test.X, rtol=1e-12)
    np.testing.assert_allclose(scaling.unscale_std([1.0, 2.0]), [scaling.y_scale, 2 * scaling.y_scale])


def test_a_constant_column_is_centred_not_divided_by_zero() -> None:
    X = make(50).X
    X[:, 1] = 0.1  # its floating-point mean is not exactly 0.1
    train, _, test = Dataset(X, np.full(50, 7.3)).split(0)
    assert (train.X[:, 1] == 0).all()
    assert (test.X[:, 1] == 0).all()
    assert (train.y == 0).all()
    assert train.original().y[0] == 7.3


@pytest.mark.parametrize("unit", [1e-200, 1e-8, 1.0, 1e150])
def test_any_unit_is_standardised(unit: float) -> None:
    scaling = Scaling.of(make().X * unit, make().y * unit)
    assert scaling.scale_inputs(make().X * unit).std(axis=0) == pytest.approx(np.ones(3))
    assert scaling.scale_target(make().y * unit).std() == pytest.approx(1)


def test_splitting_a_part_again_starts_from_original_units() -> None:
    data = make(400)
    twice = data.split(0).train.split(1)
    plain = data.split(0, standardise=False).train.split(1)
    np.testing.assert_allclose(twice.test.X, plain.test.X, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(twice.test.original().y, plain.test.original().y, rtol=1e-9)


def test_subset_draws_distinct_rows_and_grows_with_n() -> None:
    data = make(100)
    small, large = data.subset(10, seed=4), data.subset(60, seed=4)
    assert len(np.unique(large.y)) == 60
    assert np.isin(large.y, data.y).all()
    np.testing.assert_array_equal(small.X, large.X[:10])
    assert len(data.subset(100, seed=0)) == 100


@pytest.mark.parametrize("n", [0, -1, 101])
def test_subset_refuses_sizes_it_cannot_draw(n: int) -> None:
    with pytest.raises(SettingError, match="between 1 and 100"):
        make(100).subset(n, seed=0)


@pytest.mark.parametrize("seed", [-1, 1.5, None, True])
def test_refuses_a_seed_that_is_no_natural_number(seed: object) -> None:
    with pytest.raises(SettingError, match="'seed'"):
        make().split(seed)  # type: ignore[arg-type]


def test_refuses_to_split_too_few_rows() -> None:
    with pytest.raises(InputError, match="at least 5 rows"):
        make(4).split(0)
