"""Experts of POE that are trained together: exact and in float64, one batch of covariance matrices, O(m^3) for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rtgp._objectives import Batch
from rtgp._objectives.protocol import surrogate_loss
from rtgp._objectives.reading import copied, read
from rtgp.operators import make_from_form
from rtgp.training._coordinates import Coordinate, coordinates_of


class ExpertBatch:
    """Experts of equal size, whose covariance matrices are factored and inverted as one batch.

    Each kernel is evaluated and differentiated by itself, so that it need not know of batches.

    The losses are added and no parameter is shared. Adam works on each coordinate by itself, so it trains every expert
    as if it were alone.
    """

    def __init__(self, experts: Sequence[Any]) -> None:
        self._experts = list(experts)
        self._wide = [copied(expert)[0].double().train() for expert in self._experts]
        self._parameters = [{name: p for name, p in e.named_parameters() if p.requires_grad} for e in self._wide]
        self._coordinates = [
            coordinates_of(expert, parameters) for expert, parameters in zip(self._wide, self._parameters, strict=True)
        ]
        self._optimizer = torch.optim.Adam([one.leaf for each in self._coordinates for one in each])

    def evaluate(self) -> Tensor:
        """(g, 3): the loss of each expert per point, the squared norm of its gradient, and 1 where its covariance is
        not positive definite; gradients go to the leaves."""
        batches = [read(expert, expert.likelihood, check=False) for expert in self._wide]
        losses, indefinite, alpha, inverse = _solve(batches)
        if alpha is None or inverse is None:
            return torch.stack([losses, losses, indefinite], 1)
        weights = inverse.baddbmm_(alpha, alpha.mT, beta=0.5, alpha=-0.5)  # Eq. 2: d loss / d (K + noise)
        for expert, parameters, batch, weight, solve in zip(
            self._wide, self._parameters, batches, weights, alpha[:, :, 0], strict=True
        ):
            for parameter in parameters.values():
                parameter.grad = torch.zeros_like(parameter)
            kernel = make_from_form(batch.form, "tiled").contract(_blocks(weight))
            surrogate = surrogate_loss(kernel, weight.diagonal(), solve, batch)
            for _, module, prior, closure, _ in expert.named_priors():
                surrogate = surrogate - prior.log_prob(closure(module)).sum()
            torch.autograd.backward(surrogate / len(solve))
        squares = torch.stack([_squared_norm(coordinates) for coordinates in self._coordinates])
        return torch.stack([losses, squares, indefinite], 1)

    def losses(self) -> Tensor:
        """(g, 3): the same without gradients, whose norm is given as zero."""
        with torch.no_grad():
            losses, indefinite, _, _ = _solve([read(expert, expert.likelihood, check=False) for expert in self._wide])
            return torch.stack([losses, torch.zeros_like(losses), indefinite], 1)

    def step(self, rate: float) -> None:
        """One step of Adam, which brings the experts along."""
        for options in self._optimizer.param_groups:
            options["lr"] = rate
        self._optimizer.step()
        for coordinates in self._coordinates:
            for coordinate in coordinates:
                coordinate.push()
        with torch.no_grad():
            for expert, wide in zip(self._experts, self._wide, strict=True):
                for parameter, value in zip(expert.parameters(), wide.parameters(), strict=True):
                    parameter.copy_(value)


def _squared_norm(coordinates: Sequence[Coordinate]) -> Tensor:
    """The squared norm of one expert's gradient, which comes to its leaves here."""
    for coordinate in coordinates:
        coordinate.pull_gradient()
    return torch.stack([one.leaf.grad.square().sum() for one in coordinates if one.leaf.grad is not None]).sum()


def _blocks(matrix: Tensor) -> Callable[[slice, slice], Tensor]:
    return lambda rows, cols: matrix[rows, cols]


def _solve(batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The losses per point (g,), 1 for each covariance that is not positive definite (g,), the solves K_hat^-1 r
    (g, m, 1) and the inverses (g, m, m); no gradients. Where one is not positive definite, nothing is solved."""
    m = batches[0].form.size
    everything = slice(0, m)
    K_hat = torch.stack([batch.form.block(everything, everything) for batch in batches])
    K_hat.diagonal(dim1=1, dim2=2).add_(torch.stack([batch.noise.detach().expand(m) for batch in batches]))
    factor, info = torch.linalg.cholesky_ex(K_hat)
    indefinite = (info != 0).to(K_hat.dtype)
    if bool(info.any()):
        return torch.full_like(indefinite, math.nan), indefinite, None, None
    residual = torch.stack([batch.residual.detach() for batch in batches])
    alpha = torch.cholesky_solve(residual[:, :, None], factor)
    log_det = 2.0 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    losses = 0.5 * ((log_det + (residual * alpha[:, :, 0]).sum(1)) / m + math.log(2.0 * math.pi))
    return losses, indefinite, alpha, torch.cholesky_inverse(factor)
