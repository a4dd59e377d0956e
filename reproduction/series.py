"""Conjugate gradients followed to the end once, and truncated many times.

The increments come from one run of the library's solver, the weights from the method's own truncation: what is summed
here is what `rtgp._traces.log_det` and `inverse_quadratic` sum, for many truncations at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._estimator.model import RegressionModel
from rtgp._methods import Method
from rtgp._objectives import KrylovObjective
from rtgp._preconditioners import Identity
from rtgp._solvers import Output, conjugate_gradients
from rtgp._traces import log_det_series, quadratic_series
from rtgp._traces.probes import random_signs
from rtgp.errors import SettingError
from rtgp.truncation import fixed

BLOCK = 1000  # probes in one run
END = 1e-11  # error ratio at which the series has ended


@dataclass(frozen=True)
class Increments:
    """What each iteration adds to the two terms of the objective."""

    log_det: Tensor  # (H, probes): one series for each probe
    quadratic: Tensor  # (H,)


def covariance(model: RegressionModel) -> tuple[Tensor, Tensor]:
    """K + noise (n, n) and the residual y - mean (n,), float64."""
    model = model.train()
    x, y = model.train_inputs[0], model.train_targets
    with torch.no_grad():
        prior = model.likelihood(model(x))
        return prior.covariance_matrix.double(), (y - prior.mean).double()


def exact_terms(matrix: Tensor, y: Tensor) -> tuple[float, float]:
    """log|A| and y^T A^-1 y by Cholesky."""
    factor = torch.linalg.cholesky(matrix)
    half = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
    return 2.0 * float(factor.diagonal().log().sum()), float(half.square().sum())


def increments(matrix: Tensor, y: Tensor, probes: Tensor) -> Increments:
    """The series of log|A| for each probe (n, p) of unit covariance, and that of y^T A^-1 y."""
    outputs = [Output(0, None)]
    rhs = torch.cat([y[:, None], probes], dim=1)
    result = conjugate_gradients(
        lambda v: matrix @ v, rhs, fixed(None), outputs, Identity(), tolerance=END, max_iterations=10**5
    )
    return Increments(log_det_series(result, slice(1, None)), quadratic_series(result, 0))


def many_increments(matrix: Tensor, y: Tensor, count: int, generator: torch.Generator) -> Increments:
    """The same for `count` random sign vectors, some at a time."""
    found = []
    for begin in range(0, count, BLOCK):
        probes = random_signs(len(y), min(BLOCK, count - begin), generator).to(matrix)
        found.append(increments(matrix, y, probes))
    length = max(len(one.log_det) for one in found)
    quadratic = max((one.quadratic for one in found), key=len)
    return Increments(torch.cat([_longer(one.log_det, length) for one in found], dim=1), _longer(quadratic, length))


def weights(method: Method, length: int, count: int, generator: torch.Generator) -> Tensor:
    """The weights of `count` truncations by the method's own rule, (length, count): one column for each."""
    objective = method.make_objective()
    if not isinstance(objective, KrylovObjective):
        raise SettingError(f"Expected a method of conjugate gradients (rtgp.CG, rtgp.RRCG). Got {method!r:.100}.")
    found = torch.zeros(length, count, dtype=torch.float64)
    column = 0
    while column < count:
        weighting = objective.settings.truncation.start(generator)
        weighting.require_support(length)
        rows: list[tuple[float, ...]] = []
        while len(rows) < length and (drawn := weighting.next(1.0)) is not None:
            rows.append(drawn)
        kept = min(weighting.draws, count - column)
        found[: len(rows), column : column + kept] = torch.tensor(rows, dtype=torch.float64)[:, :kept]
        column += kept
    return found


def _longer(series: Tensor, length: int) -> Tensor:
    """Zeros at the end: the series had ended."""
    return torch.cat([series, series.new_zeros(length - len(series), *series.shape[1:])])
