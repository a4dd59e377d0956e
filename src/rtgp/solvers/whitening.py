"""What conjugate gradients ask of a preconditioner P = F F^T."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Whitening(Protocol):
    """The two halves of P^-1 = F^-T F^-1. Conjugate gradients keep their residual whitened and their directions and
    solutions in the original coordinates, so that nobody ever forms F e for a probe e."""

    def whiten(self, v: Tensor) -> Tensor:
        """F^-1 v, (n, r) -> (n, r), a new tensor."""
        ...

    def conditioned(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """F^-T rho for a whitened residual rho (n, r), a new tensor, and |rho|^2 = r^T P^-1 r, (r,) float64."""
        ...
