"""The data that a GPRegressor is given, checked, and in the units that its model works in."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from rtgp._estimator.arguments import tensor_of
from rtgp._estimator.fitting import reference
from rtgp._estimator.outputs import without_second_dimension
from rtgp._estimator.preprocessing import (
    check_inputs_are_numbers,
    check_inputs_finite,
    check_target_finite,
    check_target_varies,
)
from rtgp._estimator.sparse import dense
from rtgp.datasets._dataset import Array


class CheckedData:
    """How a GPRegressor reads X and y."""

    model_: Any
    n_features_in_: int
    _preprocessing: Any

    def _checked_data(self, X: Any, y: Any) -> tuple[Array, Array]:
        if y is not None:
            check_target_finite(y)
        check_inputs_are_numbers(X)
        X, y = validate_data(
            self, X, without_second_dimension(y), accept_sparse="csr", dtype=np.float64, y_numeric=True,
            ensure_min_samples=2, ensure_all_finite=False,
        )  # fmt: skip
        X, y = dense(X), y.astype(np.float64)
        check_inputs_finite(X, self._column_names())
        check_target_varies(y)
        return X, y

    def _checked_inputs(self, X: Any, reset: bool = False) -> Array:
        if not reset:
            check_is_fitted(self)
        check_inputs_are_numbers(X)
        least = 2 if reset else 1
        X = dense(validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False,
            ensure_min_samples=least,
        ))  # fmt: skip
        check_inputs_finite(X, self._column_names())
        checked: Array = X
        return checked

    def _new_inputs(self, X: Any) -> Tensor:
        """What the model takes, from what a person gives."""
        return self._working_inputs(self._checked_inputs(X))

    def _working_inputs(self, X: Array) -> Tensor:
        return tensor_of(self._preprocessing.inputs(X)).to(reference(self.model_))

    def _column_names(self) -> tuple[str, ...]:
        given = getattr(self, "feature_names_in_", None)
        return tuple(f"x{i}" for i in range(1, self.n_features_in_ + 1)) if given is None else tuple(map(str, given))

    def _input_names(self, preprocessing: Any) -> tuple[str, ...]:
        """Of the columns that are used: a column without a name has its number, whatever is left out beside it."""
        names = self._all_input_names()
        return tuple(names[j] for j in preprocessing.columns)

    def _all_input_names(self) -> tuple[str, ...]:
        unnamed = getattr(self, "feature_names_in_", None) is None
        return tuple(map(str, range(self.n_features_in_))) if unnamed else self._column_names()
