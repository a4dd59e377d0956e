"""The residuals of a run of conjugate gradients, kept for reorthogonalisation and as Lanczos vectors."""

from __future__ import annotations

import torch
from torch import Tensor


class KrylovBasis:
    """Normalised whitened residuals rho_j of every column: rho_i^T rho_j = 1{i = j}."""

    def __init__(self, n: int, r: int, like: Tensor) -> None:
        self._residuals = like.new_empty(32, n, r)
        self._count = 0

    def append(self, residual: Tensor, squares: Tensor) -> None:
        """Keep the residuals of an iteration. `squares` are their `|rho|^2`; a column with none left contributes a zero
        vector.
        """
        if self._count == self._residuals.shape[0]:
            self._residuals = torch.cat([self._residuals, torch.empty_like(self._residuals)])
        norm = torch.where(squares > 0, squares.clamp_min(1e-300).rsqrt(), 0.0).to(residual.dtype)
        torch.mul(residual, norm, out=self._residuals[self._count])
        self._count += 1

    def orthogonalise(self, residual: Tensor) -> None:
        """Remove, in place and twice, what rounding has brought back of earlier residuals."""
        residuals = self._residuals[: self._count]
        for _ in range(2):
            overlap = torch.einsum("jnr,nr->jr", residuals, residual)
            residual -= torch.einsum("jnr,jr->nr", residuals, overlap)

    def lanczos_vectors(self, columns: slice) -> Tensor:
        """The Lanczos vectors q_j of B = F^-1 A F^-T, (J, n, k): their signs alternate."""
        signs = self._residuals.new_ones(self._count)
        signs[1::2] = -1.0
        return self._residuals[: self._count, :, columns] * signs[:, None, None]
