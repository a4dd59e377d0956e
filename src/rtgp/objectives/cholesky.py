"""The exact negative log marginal likelihood and its gradient in closed form (Eq. 1 and 2)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rtgp.errors import NotPositiveDefiniteError, OutOfMemoryError, RTGPError
from rtgp.kernels import KernelForm
from rtgp.memory import available_memory
from rtgp.objectives.information import average_information
from rtgp.objectives.protocol import Batch, EstimateStats, Extras, LossEstimate, surrogate_loss
from rtgp.operators import TiledOperator, make_from_form
from rtgp.solvers import WhitenedSystem
from rtgp.solvers.cholesky import assemble, cholesky_factor, invert_in_place
from rtgp.solvers.system import warn_of_rounding
from rtgp.state import State, saved_flag, saved_number

_WORTH_ASKING = 2**28  # bytes
# Of the condition number in float32: at 3e5 a factor's gradients were off by up to 1e-2 of their terms, at 3e8 by all.
_LIMIT = 1e5
# Far below any noise that is worth knowing, and as far as GPyTorch goes too.
_SMALLEST_JITTER, _LARGEST_JITTER = 1e-10, 1e-6


def _check_memory(form: KernelForm) -> None:
    """Before the system, which promises more memory than it has, ends the process without a word."""
    needed = 2 * form.size**2 * form.dtype.itemsize
    if needed < _WORTH_ASKING or form.device.type != "cpu":
        return
    left = available_memory()
    if needed > left:
        raise OutOfMemoryError(
            f"Cholesky on {form.size:,} points needs {needed / 2**30:.1f} GiB; {left / 2**30:.1f} GiB are left. "
            "Take method='rr-cg', which aims at the same optimum in memory that grows as n."
        )


class CholeskyObjective:
    """O(n^3) time, two n x n matrices of memory, no autograd tape."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Nothing is held between calls but whether warnings have been given, and a jitter."""
        self._warned = False  # that the model's precision cannot serve
        self._warned_of_float64 = False  # and that float64 cannot either
        self._jitter = 0.0  # added to the noise, as a part of the kernel's mean variance

    def overcome(self, error: RTGPError) -> str | None:
        """Where the matrix is not definite: a jitter, ten times larger each time."""
        if not isinstance(error, NotPositiveDefiniteError) or self._jitter >= _LARGEST_JITTER:
            return None
        self._jitter = max(_SMALLEST_JITTER, 10.0 * self._jitter)
        return f"a jitter of {self._jitter:.0e} times the kernel's variance is added to the noise"

    def state_dict(self) -> State:
        return {"warned": self._warned, "warned of float64": self._warned_of_float64, "jitter": self._jitter}

    def load_state_dict(self, state: State) -> None:
        state = {"warned of float64": False, "jitter": 0.0, **state}  # not in checkpoints of older versions
        self._warned, self._warned_of_float64 = saved_flag(state, "warned"), saved_flag(state, "warned of float64")
        self._jitter = saved_number(state, "jitter", (0.0, _LARGEST_JITTER))

    def __call__(
        self, batch: Batch, generator: torch.Generator | None = None, extras: Extras | None = None
    ) -> LossEstimate:
        if self._jitter > 0.0:
            added = self._jitter * batch.form.diagonal().detach().double().mean()
            batch = replace(batch, noise=batch.noise + added.to(batch.noise))
        form = self._form(batch)
        _check_memory(form)
        system = WhitenedSystem(make_from_form(form, "tiled"), batch.noise)
        factor = cholesky_factor(assemble(system))
        residual = system.whiten(batch.residual.detach()[:, None].to(system.dtype))
        alpha = torch.cholesky_solve(residual, factor)  # (n, 1)
        log_det = 2.0 * factor.diagonal().double().log().sum() + system.log_det_noise()
        quadratic = (residual * alpha).sum(dtype=torch.float64)
        value = 0.5 * (log_det + quadratic + system.size * math.log(2.0 * math.pi))

        information = None
        if extras is not None and extras.information is not None and batch.requires_grad:
            information = average_information(
                batch, system, system.whiten(alpha), lambda v: torch.cholesky_solve(v, factor), extras.parameters
            )
        surrogate = self._surrogate(batch, system, factor, alpha[:, 0]) if batch.requires_grad else value
        limits = system.limits()
        stats = EstimateStats(
            method="cholesky",
            dtype=system.dtype,
            log_det=float(log_det),
            quadratic=float(quadratic),
            condition=limits.condition,
            rounding=limits.rounding,
        )
        return LossEstimate(surrogate, value, stats, information=information)

    def _form(self, batch: Batch) -> KernelForm:
        """In the precision of the model; in float64 where that cannot serve, and the kernel can be computed in it."""
        wide = batch.form.widened() if batch.form.dtype != torch.float64 else None
        limits = batch.limits()
        self._warned = self._warned or warn_of_rounding(limits, wide is not None)
        if wide is None or limits.condition <= _LIMIT:
            return batch.form
        self._warned_of_float64 = self._warned_of_float64 or warn_of_rounding(batch.limits(torch.float64))
        return wide

    @staticmethod
    def _surrogate(batch: Batch, system: WhitenedSystem, factor: Tensor, alpha: Tensor) -> Tensor:
        # dL/dK = 1/2 S (A^-1 - alpha alpha^T) S
        # LAPACK's is the faster on a CPU.
        assert isinstance(system.operator, TiledOperator)
        tile = system.operator.tile
        inverse = invert_in_place(factor, tile) if factor.is_cuda else torch.cholesky_inverse(factor, out=factor)
        s = system.noise.rsqrt().to(system.dtype)
        scaled_alpha = alpha * s

        def weight(rows: slice, cols: slice) -> Tensor:
            block = inverse[cols, rows].T * s[rows, None] * s[cols]  # on or below the diagonal of tiles
            return block.addr_(scaled_alpha[rows], scaled_alpha[cols], alpha=-1.0).mul_(0.5)

        noise_weights = 0.5 * (inverse.diagonal().double() / system.noise - scaled_alpha.double().square())
        return surrogate_loss(system.operator.contract(weight), noise_weights, scaled_alpha, batch)
