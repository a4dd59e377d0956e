"""The exact negative log marginal likelihood and its gradient in closed form (Eq. 1 and 2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rtgp.objectives.information import average_information
from rtgp.objectives.protocol import Batch, EstimateStats, Extras, LossEstimate, State, surrogate_loss
from rtgp.operators import make_from_form
from rtgp.solvers import WhitenedSystem
from rtgp.solvers.cholesky import assemble, cholesky_factor
from rtgp.solvers.system import warn_of_rounding


class CholeskyObjective:
    """O(n^3) time, two n x n matrices of memory, no autograd tape."""

    def __init__(self) -> None:
        self._warned = False

    def reset(self) -> None:
        """Nothing is held between calls but whether a warning has been given."""
        self._warned = False

    def state_dict(self) -> State:
        return {"warned": self._warned}

    def load_state_dict(self, state: State) -> None:
        self._warned = bool(state["warned"])

    def __call__(
        self, batch: Batch, generator: torch.Generator | None = None, extras: Extras | None = None
    ) -> LossEstimate:
        system = WhitenedSystem(make_from_form(batch.form, "tiled"), batch.noise)
        self._warned = self._warned or warn_of_rounding(system.kernel_diagonal(), system.dtype)
        factor = cholesky_factor(assemble(system))
        residual = system.whiten(batch.residual.detach()[:, None].to(system.dtype))
        alpha = torch.cholesky_solve(residual, factor)  # (n, 1)
        log_det = 2.0 * factor.diagonal().double().log().sum() + system.log_det_noise()
        quadratic = (residual * alpha).sum(dtype=torch.float64)
        value = 0.5 * (log_det + quadratic + system.size * math.log(2.0 * math.pi))

        information = None
        if extras is not None and extras.parameters and batch.requires_grad:
            information = average_information(
                batch, system, system.whiten(alpha), lambda v: torch.cholesky_solve(v, factor), extras.parameters
            )
        surrogate = self._surrogate(batch, system, factor, alpha[:, 0]) if batch.requires_grad else value
        stats = EstimateStats(
            method="cholesky",
            dtype=system.dtype,
            log_det=float(log_det),
            quadratic=float(quadratic),
            condition=system.condition_bound(),
            rounding=system.rounding(),
        )
        return LossEstimate(surrogate, value, stats, information=information)

    @staticmethod
    def _surrogate(batch: Batch, system: WhitenedSystem, factor: Tensor, alpha: Tensor) -> Tensor:
        # dL/dK = 1/2 S (A^-1 - alpha alpha^T) S
        inverse = torch.cholesky_inverse(factor, out=factor)
        s = system.noise.rsqrt().to(system.dtype)
        scaled_alpha = alpha * s

        def weight(rows: slice, cols: slice) -> Tensor:
            block = inverse[rows, cols] * s[rows, None] * s[cols]
            return block.addr_(scaled_alpha[rows], scaled_alpha[cols], alpha=-1.0).mul_(0.5)

        noise_weights = 0.5 * (inverse.diagonal().double() / system.noise - scaled_alpha.double().square())
        return surrogate_loss(system.operator.contract(weight), noise_weights, scaled_alpha, batch)
