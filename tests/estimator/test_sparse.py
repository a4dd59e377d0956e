"""Sparse inputs: taken as the dense table that they are, and refused where that would not fit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from rtgp._estimator import sparse as module
from rtgp._estimator.regressor import GPRegressor
from rtgp.errors import OutOfMemoryError


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (60, 4)) * (rng.random((60, 4)) < 0.5)
    return X, np.sin(3.0 * X[:, 0]) + X[:, 1] + 0.05 * rng.normal(size=60)


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_matrix", "lil_matrix"])
def test_predicts_as_from_the_dense_table(kind: str) -> None:
    X, y = data()
    made = getattr(sparse, kind)(X)
    gp, wanted = (GPRegressor(random_state=0).fit(table, y) for table in (made, X))
    for given in (made, X):
        assert np.array_equal(gp.predict(given), wanted.predict(X))
    assert np.array_equal(gp.sample_y(made.tocsr()[:5], 2), wanted.sample_y(X[:5], 2))
    several = GPRegressor(random_state=0, steps=3).fit(made, np.column_stack([y, -y]))
    assert several.predict(made).shape == (60, 2)


def test_a_one_hot_encoder_may_stay_sparse() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-1, 1, 80), rng.integers(0, 3, 80)])
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=80)
    encoder = ColumnTransformer([("kind", OneHotEncoder(), [1])], remainder="passthrough", sparse_threshold=1.0)
    assert sparse.issparse(encoder.fit_transform(X))
    assert make_pipeline(encoder, GPRegressor(random_state=0)).fit(X, y).score(X, y) > 0.9


def test_more_than_memory_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    X = sparse.csr_matrix((1_000_000, 500_000))
    with pytest.raises(OutOfMemoryError, match=r"1,000,000 x 500,000 takes 3725\.3 GiB .*TruncatedSVD"):
        module.dense(X)
    monkeypatch.setattr(module, "available_memory", lambda: 1000)
    with pytest.raises(OutOfMemoryError, match="A sparse table of 60 x 4"):
        GPRegressor().fit(sparse.csr_matrix(data()[0]), data()[1])


def test_gaps_are_named_by_row_and_column() -> None:
    X, y = data()
    X[6, 2] = np.nan
    with pytest.raises(ValueError, match="row 7, column 'x3' is missing"):
        GPRegressor().fit(sparse.csr_matrix(X), y)
