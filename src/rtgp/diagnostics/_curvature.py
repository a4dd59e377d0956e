"""How sharply the likelihood peaks, and so where a biased gradient would make training end.

Where a gradient carries a bias b, training ends at a true gradient of -b: to first order at a distance -H^-1 b from
the optimum. For H the average-information matrix serves (Gilmour, Thompson and Cullis 1995), which needs solves and no
probes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._methods import RRCG, Cholesky
from rtgp._mll import MarginalLogLikelihood
from rtgp._precision import SILENT
from rtgp.diagnostics._draws import Units
from rtgp.diagnostics._settings import DEFAULT, MeasureSettings
from rtgp.diagnostics._subject import Subject


def information_of(
    subject: Subject, units: Units, cholesky: bool, seed: int, settings: MeasureSettings = DEFAULT.measure
) -> Tensor:
    """(p, p) float64 in the units of `units`; rows of NaN for parameters that act through the inputs of a kernel."""
    model, generator = subject.model, torch.Generator().manual_seed(seed)
    method = Cholesky() if cholesky else RRCG()
    mll = MarginalLogLikelihood(model.likelihood, model, method, generator, _notices=SILENT)
    trained = [parameter for parameter in mll.parameters() if parameter.requires_grad]
    left_out = [parameter for parameter in trained if id(parameter) not in units.places]
    for parameter in left_out:  # of a column for every weight of a network nothing would be used
        parameter.requires_grad_(False)
    try:
        prior = model(subject.X)
        covered = mll.knows_information(prior, subject.y)
        found = mll.evaluate(prior, subject.y, information=settings.information, iterations=None).information
    finally:
        mll.release()
        for parameter in left_out:
            parameter.requires_grad_(True)
    assert found is not None
    # `units` has the order of the module's own parameters, which is that of the matrix.
    matrix = len(subject.y) * found * units.factors * units.factors[:, None]
    if not covered:
        unknown = matrix.diagonal() == 0.0
        matrix[unknown], matrix[:, unknown] = math.nan, math.nan
    return matrix


@dataclass(frozen=True)
class Shift:
    """How far the optimum would move."""

    size: Tensor  # (p,); NaN where it is not known
    error: Tensor  # (p,): standard errors
    cost: float  # in nats of log marginal likelihood; NaN: not known


def predicted_shift(bias: Tensor, covariance: Tensor, information: Tensor) -> Shift:
    """The first-order shift for a bias (p,) that is known up to a covariance (p, p).

    Every logarithm has one unit of prior information, so that what the data do not determine does not run away. The
    cost, 1/2 b^T A^-1 b, is reduced by what the uncertainty of the bias alone adds to it.
    """
    known = torch.isfinite(information.diagonal())
    size, error = torch.full_like(bias, math.nan), torch.full_like(bias, math.nan)
    if not bool(known.any()):
        return Shift(size, error, math.nan)
    matrix, own = information[known][:, known], covariance[known][:, known]
    inverse = torch.linalg.inv(matrix + torch.eye(len(matrix), dtype=matrix.dtype))
    size[known] = -inverse @ bias[known]
    error[known] = (inverse @ own @ inverse).diagonal().clamp_min(0.0).sqrt()
    cost = 0.5 * (-(size[known] @ bias[known]) - (inverse * own).sum())
    return Shift(size, error, max(0.0, float(cost)))
