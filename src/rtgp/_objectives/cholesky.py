"""The exact negative log marginal likelihood and its gradient in closed form (Eq. 1 and 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._memory import available_memory
from rtgp._objectives.information import average_information
from rtgp._objectives.protocol import Batch, EstimateRequest, EstimateStats, LossEstimate, surrogate_loss
from rtgp._precision import Notices, PrecisionSettings, WorkingPrecision
from rtgp._solvers import NoiseUnits
from rtgp._solvers.cholesky import assemble, cholesky_factor, invert_in_place
from rtgp._state import State, saved_number
from rtgp.errors import NotPositiveDefiniteError, OutOfMemoryError, RTGPError
from rtgp.operators import TiledOperator, make_from_form


@dataclass(frozen=True)
class CholeskySettings:
    """What the exact objective does where it fails. Chosen, not fitted.

    Attributes
    ----------
    smallest_jitter, largest_jitter : float
        Parts of the kernel's mean variance, added in turn where the matrix is not positive definite. They are far below
        any noise of interest, and go as far as GPyTorch's.
    worth_asking : int
        Bytes from which the system is asked for its memory first.
    precision : PrecisionSettings
        Whether float32 serves.
    """

    smallest_jitter: float = 1e-10
    largest_jitter: float = 1e-6
    worth_asking: int = 2**28
    precision: PrecisionSettings = field(default_factory=PrecisionSettings)


DEFAULT = CholeskySettings()


def _check_memory(form: KernelForm, worth_asking: int) -> None:
    """Refuse a size that does not fit, before the system promises more memory than it has and then ends the process."""
    needed = 2 * form.size**2 * form.dtype.itemsize
    if needed < worth_asking or form.device.type != "cpu":
        return
    left = available_memory()
    if needed > left:
        raise OutOfMemoryError(
            f"Cholesky on {form.size:,} points needs {needed / 2**30:.1f} GiB; {left / 2**30:.1f} GiB are left. "
            "Take method='rr-cg', which aims at the same optimum in memory that grows as n."
        )


class CholeskyObjective:
    """O(n^3) time, two n x n matrices of memory, no autograd tape. It holds its precision and a jitter."""

    def __init__(self, settings: CholeskySettings = DEFAULT) -> None:
        self.settings = settings
        self._precision = WorkingPrecision(settings.precision)
        self.reset()

    def reset(self) -> None:
        self._precision.reset()
        self._jitter = 0.0  # added to the noise, as a part of the kernel's mean variance

    def overcome(self, error: RTGPError) -> str | None:
        """Where the matrix is not definite: a jitter, ten times larger each time."""
        if not isinstance(error, NotPositiveDefiniteError) or self._jitter >= self.settings.largest_jitter:
            return None
        self._jitter = max(self.settings.smallest_jitter, 10.0 * self._jitter)
        return f"a jitter of {self._jitter:.0e} times the kernel's variance is added to the noise"

    def state_dict(self) -> State:
        return {**self._precision.findings(), "jitter": self._jitter}

    def load_state_dict(self, state: State) -> None:
        state = {"jitter": 0.0, **state}  # not in checkpoints of older versions
        self._precision.load_state_dict(state)
        self._jitter = saved_number(state, "jitter", (0.0, self.settings.largest_jitter))

    def __call__(
        self, batch: Batch, generator: torch.Generator | None = None, request: EstimateRequest | None = None
    ) -> LossEstimate:
        if self._jitter > 0.0:
            added = self._jitter * batch.form.diagonal().detach().double().mean()
            batch = replace(batch, noise=batch.noise + added.to(batch.noise))
        notices = Notices() if request is None else request.notices
        form = self._precision.form_to_factor(batch.form, batch.noise, notices)
        _check_memory(form, self.settings.worth_asking)
        system = NoiseUnits(make_from_form(form, "tiled"), batch.noise)
        factor = cholesky_factor(assemble(system))
        residual, outputs = system.scaled(batch.residuals.detach().to(system.dtype)), batch.outputs  # (n, t)
        alpha = torch.cholesky_solve(residual, factor)  # (n, t)
        log_det = 2.0 * factor.diagonal().double().log().sum() + system.log_det_noise()
        quadratic = (residual * alpha).sum(dtype=torch.float64)
        value = 0.5 * (outputs * (log_det + system.size * math.log(2.0 * math.pi)) + quadratic)

        information = None
        if request is not None and request.information is not None and batch.requires_grad:
            information = average_information(
                batch, system, system.scaled(alpha), lambda v: torch.cholesky_solve(v, factor), request.parameters
            )
        surrogate = self._surrogate(batch, system, factor, alpha) if batch.requires_grad else value
        limits = system.limits()
        stats = EstimateStats(
            method="cholesky",
            dtype=system.dtype,
            log_det=float(log_det),
            quadratic=float(quadratic),
            condition=limits.condition,
            rounding=limits.rounding,
            dtype_reason=self._precision.reason,
            outputs=outputs,
        )
        return LossEstimate(surrogate, value, stats, information=information)

    @staticmethod
    def _surrogate(batch: Batch, system: NoiseUnits, factor: Tensor, alpha: Tensor) -> Tensor:
        # dL/dK = 1/2 S (t A^-1 - alpha alpha^T) S for t outputs, alpha (n, t)
        # LAPACK's is the faster on a CPU.
        assert isinstance(system.operator, TiledOperator)
        tile = system.operator.tile
        inverse = invert_in_place(factor, tile) if factor.is_cuda else torch.cholesky_inverse(factor, out=factor)
        s, outputs = system.noise.rsqrt().to(system.dtype), alpha.shape[1]
        scaled_alpha = alpha * s[:, None]

        def weight(rows: slice, cols: slice) -> Tensor:
            block = inverse[cols, rows].T * s[rows, None] * s[cols]  # on or below the diagonal of tiles
            if outputs == 1:  # entry by entry, which rounds less than a product of matrices
                return block.addr_(scaled_alpha[rows, 0], scaled_alpha[cols, 0], alpha=-1.0).mul_(0.5)
            return block.addmm_(scaled_alpha[rows], scaled_alpha[cols].T, beta=outputs, alpha=-1.0).mul_(0.5)

        squares = scaled_alpha.double().square().sum(1)
        noise_weights = 0.5 * (outputs * inverse.diagonal().double() / system.noise - squares)
        return surrogate_loss(system.operator.contract(weight), noise_weights, scaled_alpha, batch)
