"""Sparse inputs: accepted, and made dense, because distances between points need all columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from rtgp._memory import available_memory
from rtgp.datasets._dataset import Array
from rtgp.errors import OutOfMemoryError


@dataclass(frozen=True)
class DenseSettings:
    """How much memory a dense table takes. Chosen, not fitted.

    Attributes
    ----------
    copies : int
        Of the table that are made at the most, standardised and as a tensor.
    """

    copies: int = 4


DEFAULT = DenseSettings()


def dense(X: Any, settings: DenseSettings = DEFAULT) -> Array:
    """X (n, d) as it is, or from a sparse table; an error, before any of it is taken, where memory would not do."""
    if not sparse.issparse(X):
        given: Array = X
        return given
    n, d = X.shape
    needed, left = 8 * n * d, available_memory()
    if settings.copies * needed > left:
        raise OutOfMemoryError(
            f"A sparse table of {n:,} x {d:,} takes {needed / 2**30:.1f} GiB as a dense one, of which some copies are "
            f"needed; {left / 2**30:.1f} GiB are left. Take fewer rows, or fewer columns: "
            "sklearn.decomposition.TruncatedSVD makes some dozen of many."
        )
    return np.asarray(X.toarray(), dtype=np.float64)
