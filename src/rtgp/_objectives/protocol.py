"""What an objective is given and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._precision import Notices, PrecisionLimits, limits_of
from rtgp._state import State
from rtgp.errors import RTGPError


@dataclass(frozen=True)
class Batch:
    """One Gaussian process with its data: residual ~ N(0, K + noise).

    Of several outputs, residual (n, t), each column is such a draw of its own: one K + noise for all of them.
    """

    form: KernelForm  # K(X, X), without noise
    noise: Tensor  # () or (n,): variances, with their autograd history
    residual: Tensor  # (n,) or (n, t): y - mean(X), with its autograd history

    @property
    def residuals(self) -> Tensor:
        """(n, t), a column for each output."""
        return self.residual if self.residual.ndim == 2 else self.residual[:, None]

    @property
    def outputs(self) -> int:
        return self.residuals.shape[1]

    @property
    def requires_grad(self) -> bool:
        """Whether anything is to be differentiated; if not, the value alone is wanted."""
        inputs = (*self.form.tensors, self.noise, self.residual)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)

    def limits(self, dtype: torch.dtype | None = None) -> PrecisionLimits:
        """How far the model's own precision may serve, or another."""
        return limits_of(self.form, self.noise, dtype)


@dataclass(frozen=True)
class EstimateStats:
    """How an estimate came about."""

    method: str
    dtype: torch.dtype
    log_det: float  # of K + noise
    quadratic: float  # residual^T (K + noise)^-1 residual, summed over the outputs
    condition: float  # upper bound of the condition number of K + noise, in units of the noise
    rounding: float  # what rounding K to the working precision may amount to, in units of the noise
    iterations: int = 0
    truncations: tuple[int, ...] = ()
    residual: float = 0.0  # error proxy at the end of the run, 1 = nothing solved
    frozen: int = 0  # columns that reached the working precision
    columns: int = 0  # right-hand sides in the run
    rank: int = 0  # of the preconditioner
    neighbours: int = 0  # of the preconditioner
    preconditioner_reason: str = ""  # why it has its shape; "" where that was asked for
    rebuilt: bool = False  # whether the preconditioner was rebuilt
    probe_kind: str = ""
    value_error: float = 0.0  # standard error of the value, over probes and truncations; 0: exact, NaN: not known
    features: int = 0  # columns of Fourier features, at most
    effective_dimension: float = 0.0  # tr(K_J (K_J + noise)^-1) of the Fourier features' kernel
    operations: float = 0.0  # floating-point operations, roughly; 0 where they are not counted
    dtype_reason: str = ""  # why it is not the model's own; "" where it is
    outputs: int = 1  # that share K + noise
    rows: int = 0  # targets that are observed, of all models of a batch


@dataclass(frozen=True)
class LossEstimate:
    """An estimate of the negative log marginal likelihood (not divided by n; of several outputs the sum).

    surrogate.backward() gives the gradient estimate; value is the estimate itself, finite and detached. The gradient of
    `contrast` has mean zero and, to first order, the covariance of the gradient estimate over probes and truncations of
    the y-solve: half of the probes minus the other half, and one of the two solves of a roulette minus the other.
    """

    surrogate: Tensor
    value: Tensor
    stats: EstimateStats
    contrast: Tensor | None = None
    information: Tensor | None = None  # (p, p): the average-information matrix of the parameters asked for


@dataclass(frozen=True)
class EstimateRequest:
    """What an optimiser wants beside value and gradient."""

    contrast: bool = False
    parameters: Sequence[Tensor] = ()  # that it moves
    information: float | None = None  # if their average-information matrix is wanted: the tolerance of its solves,
    iterations: int | None = 200  # unless they take more than that; None: as many as it takes
    most_iterations: int | None = None  # of the run itself; a longer one is given up with a ConvergenceError
    hold: bool = False  # keep what is held between calls, for draws that are used again: nothing is learnt or decided
    complete: bool = False  # no truncation: where draws are used again, nothing but the hyperparameters changes
    once: bool = False  # no further call comes: what is made must pay in this one
    notices: Notices = field(default_factory=Notices)  # what has been reported to the user


class Objective(Protocol):
    """Estimates the negative log marginal likelihood and its gradient."""

    def __call__(
        self, batch: Batch, generator: torch.Generator | None, request: EstimateRequest | None = None
    ) -> LossEstimate: ...

    def reset(self) -> None:
        """Forget everything held between calls, and free its memory at once."""
        ...

    def overcome(self, error: RTGPError) -> str | None:
        """Change something so that a call that failed may succeed the next time.

        What was changed is returned in words; None where nothing is left to change.
        """
        ...

    def state_dict(self) -> State:
        """What is held between calls, for a checkpoint."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Take up what an earlier `state_dict` held."""
        ...


def surrogate_loss(kernel_term: Tensor, noise_weights: Tensor, solve: Tensor, batch: Batch) -> Tensor:
    """A scalar whose gradient is that of the loss: through K, through the noise variances, through the residual.

    `noise_weights` (n,) are dL/dnoise_i, and `solve` is (K + noise)^-1 residual, of its shape.
    """
    noise = (batch.noise.expand(batch.form.size) * noise_weights.to(batch.noise.dtype)).sum()
    data = (batch.residual * solve.to(batch.residual.dtype).reshape(batch.residual.shape)).sum()
    return kernel_term + noise.to(kernel_term.dtype) + data.to(kernel_term.dtype)


def gradient_of(scalar: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The gradient by all of them, as one vector (p,), float64 on the CPU; 0 where it does not depend on one."""
    found: Sequence[Tensor | None] = [None] * len(parameters)
    if scalar.requires_grad:
        found = torch.autograd.grad(scalar, list(parameters), retain_graph=True, allow_unused=True)
    pieces = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return torch.cat([piece.detach().reshape(-1).double().cpu() for piece in pieces])
