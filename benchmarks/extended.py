"""The exact objective in 80-bit numbers: a judge for systems that are beyond float64. Some seconds for 2000 points."""

from __future__ import annotations

import checkout  # noqa: F401
import numpy as np

from reproduction.models import twin_in_float64
from rtgp._estimator.model import RegressionModel

_BLOCK = 64
_ROWS = 256  # at once: the rest of a row fits into the cache


def exact_objective(model: RegressionModel, state) -> float:
    """The negative log marginal likelihood per point of a model with an RBF kernel and one noise."""
    twin = twin_in_float64(model, state)
    x, y, kernel = twin.train_inputs[0], twin.train_targets, twin.covar_module
    lengthscale = kernel.base_kernel.lengthscale.detach().numpy().ravel().astype(np.longdouble)
    outputscale, noise, mean = (
        np.longdouble(value.item()) for value in (kernel.outputscale, twin.likelihood.noise, twin.mean_module.constant)
    )
    scaled = x.numpy().astype(np.longdouble) / lengthscale
    covariance = np.zeros((len(scaled), len(scaled)), np.longdouble)
    for column in scaled.T:
        covariance += (column[:, None] - column) ** 2
    covariance = outputscale * np.exp(-covariance / 2)
    covariance.flat[:: len(scaled) + 1] += noise
    factor = _factorise(covariance)
    white = _solve_lower(factor, y.numpy().astype(np.longdouble) - mean)
    log_det = 2 * np.log(np.diag(factor)).sum()
    return float((log_det + white @ white + len(white) * np.log(2 * np.longdouble(np.pi))) / (2 * len(white)))


def _factorise(a: np.ndarray) -> np.ndarray:
    """Its lower Cholesky factor, in place, with anything above the diagonal. LAPACK does not have these numbers."""
    n = len(a)
    for start in range(0, n, _BLOCK):
        end = min(start + _BLOCK, n)
        for j in range(start, end):
            a[j, j] = np.sqrt(a[j, j])
            a[j + 1 :, j] /= a[j, j]
            a[j + 1 :, j + 1 : end] -= np.multiply.outer(a[j + 1 :, j], a[j + 1 : end, j])
        panel = a[end:, start:end]
        for row in range(0, n - end, _ROWS):
            a[end + row : end + row + _ROWS, end:] -= panel[row : row + _ROWS] @ panel.T
    return a


def _solve_lower(factor: np.ndarray, v: np.ndarray) -> np.ndarray:
    for i in range(len(v)):
        v[i] = (v[i] - factor[i, :i] @ v[:i]) / factor[i, i]
    return v
