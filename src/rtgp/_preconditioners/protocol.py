"""What every preconditioner P = F F^T offers.

A = S K S + I is the system in units of the noise, B = F^-1 A F^-T what conjugate gradients see. Probes of covariance P
are drawn whitened: e with E[e e^T] = I stands for F e, and u = F^-T e for P^-1 F e. Then

    E[x^T dA u] = tr(A^-1 dA)  for  x = A^-1 F e,      log|A| = log|P| + tr log B.

Any P that does not depend on the probes leaves both unbiased: stale, random, or chosen by what earlier runs cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._solvers import NoiseUnits


class Preconditioner(ABC):
    """A symmetric positive definite P = F F^T, given by F^-1 and F^-T."""

    size: int  # n
    rank: int  # columns of its low-rank part
    neighbours: int  # earlier points in a row of its sparse part

    @abstractmethod
    def whiten(self, v: Tensor) -> Tensor:
        """F^-1 v, (n, r) -> (n, r), a new tensor in the dtype of v."""

    @abstractmethod
    def whiten_transpose(self, v: Tensor) -> Tensor:
        """F^-T v, (n, r) -> (n, r), a new tensor in the dtype of v."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """log |P|, float64 on the CPU."""

    @abstractmethod
    def inverse_diagonal(self) -> Tensor:
        """The diagonal of P^-1, (n,), float64."""

    def conditioned(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        return self.whiten_transpose(residual), residual.square().sum(0, dtype=torch.float64)

    def solve(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """P^-1 r, (n, k), and r^T P^-1 r per column, (k,) float64 and never negative."""
        return self.conditioned(self.whiten(r))

    def renew(self, other: Preconditioner) -> bool:
        """Become the other one in the same memory, where it has the same shape and that saves something.

        What has been recorded of its products then holds for the new one.
        """
        return False

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """For a checkpoint; the same on every rank."""


class Control(Protocol):
    """A control variate of the trace: a fixed symmetric M for every hyperparameter, near dA, whose tr(P^-1 M) is known.

    u^T M u - tr(P^-1 M) has mean zero for u = F^-T e. The objective decides how much of it is used.
    """

    def losses(
        self, system: NoiseUnits, duals: Tensor, squares: Tensor, weights: Tensor, form: KernelForm, noise: Tensor
    ) -> Tensor:
        """(2,): scalars whose gradients are the control variate's parts.

        The gradient of the first is sum_p w_p (u_p^T M u_p - tr(P^-1 M)), the kernel's part; that of the second is the
        same for the noise.

        `duals` (n, p) are u, `squares` (p,) are u^T A u, and `weights` (p,) are w. `form` and `noise` have their
        autograd history.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]: ...


class Identity(Preconditioner):
    """P = I: no preconditioner."""

    rank = 0
    neighbours = 0

    def __init__(self, size: int = 0) -> None:
        self.size = size

    def whiten(self, v: Tensor) -> Tensor:
        return v.clone()

    whiten_transpose = whiten

    def logdet(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64)

    def inverse_diagonal(self) -> Tensor:
        return torch.ones(self.size, dtype=torch.float64)

    def state_dict(self) -> dict[str, Tensor]:
        return {}
