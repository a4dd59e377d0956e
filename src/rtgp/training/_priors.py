"""The curvature of the priors, which the average-information matrix knows nothing of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def prior_hessian(model: Any, parameters: Sequence[Tensor]) -> Tensor | None:
    """(p, p), float64 on the CPU: the second derivatives of minus the log density of all priors of the model.

    Those of its likelihood are among them; asked of model and likelihood together, GPyTorch names them twice.
    """
    densities = [prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in model.named_priors()]
    densities = [density.double() for density in densities if density.requires_grad]
    if not densities:
        return None
    total = -torch.stack(densities).sum()
    gradient = _flat(torch.autograd.grad(total, parameters, create_graph=True, allow_unused=True), parameters)
    rows = []
    for entry in gradient:
        known = entry.requires_grad
        found = torch.autograd.grad(entry, parameters, retain_graph=True, allow_unused=True) if known else ()
        rows.append(_flat(found or [None] * len(parameters), parameters).detach().cpu())
    matrix = torch.stack(rows)
    return 0.5 * (matrix + matrix.T)


def absolute(matrix: Tensor) -> Tensor:
    """The symmetric matrix with its eigenvalues replaced by their absolute values: a metric for Newton's method."""
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    positive: Tensor = (vectors * eigenvalues.abs()) @ vectors.T
    return positive


def _flat(pieces: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, pieces, strict=True)]
    return torch.cat([piece.reshape(-1).double() for piece in filled])
