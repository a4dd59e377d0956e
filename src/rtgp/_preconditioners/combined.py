"""P = L L^T + (G^T G)^-1: a low rank for what is smooth, neighbours for what it leaves.

G is the sparse inverse factor of A - L L^T, the neighbours of a point those it is most correlated with there. With
H = G L the preconditioner is G^-1 (H H^T + I) G^-T: whitening is G, then that of the low rank H H^T + I.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._preconditioners.low_rank import LowRank
from rtgp._preconditioners.nearest import most_correlated
from rtgp._preconditioners.protocol import Preconditioner
from rtgp._preconditioners.sparse_factor import inverse_factor_rows
from rtgp._preconditioners.sparse_inverse import SparseInverse
from rtgp._state import saved_tensor


class LowRankAndNeighboursInverse(Preconditioner):
    """A low rank and neighbours as one preconditioner, on one rank.

    Parameters
    ----------
    factor : Tensor
        L (n, k), float64.
    sparse : SparseInverse
        G.
    """

    def __init__(self, factor: Tensor, sparse: SparseInverse, thin: LowRank) -> None:
        # One layout, however it came about: the same numbers from a checkpoint then give the same bits.
        self.factor, self.sparse, self.thin = factor.contiguous(), sparse, thin
        self.size, self.rank, self.neighbours = sparse.size, thin.rank, sparse.neighbours

    @classmethod
    def of(
        cls, form: KernelForm, noise: Tensor, factor: Tensor, candidates: Tensor, count: int, dtype: torch.dtype
    ) -> LowRankAndNeighboursInverse:
        """Make it from a low rank and from `candidates` (n, c), of which `count` are taken.

        Candidates are earlier points of each point, -1 where there are fewer.
        """
        scale = noise.rsqrt()
        points = torch.arange(form.size, device=form.device)
        neighbours = most_correlated(form, points, candidates, count, scale, factor)
        sparse = SparseInverse(*inverse_factor_rows(form, scale, neighbours, low_rank=factor), dtype)
        return cls(factor, sparse, LowRank(sparse.whiten(factor), dtype))

    def whiten(self, v: Tensor) -> Tensor:
        return self.thin.whiten(self.sparse.whiten(v))

    def whiten_transpose(self, v: Tensor) -> Tensor:
        return self.sparse.whiten_transpose(self.thin.whiten_transpose(v))

    def logdet(self) -> Tensor:
        return self.sparse.logdet() + self.thin.logdet()

    def inverse_diagonal(self) -> Tensor:
        # P^-1 = G^T (I + Q (C^-T C^-1 - I) Q^T) G
        across = self.sparse.whiten_transpose(self.thin.basis)  # G^T Q, (n, k)
        inverse = self.thin.core_inverse
        core = inverse.T @ inverse - torch.eye(self.rank, dtype=inverse.dtype, device=inverse.device)
        return self.sparse.inverse_diagonal() + ((across @ core) * across).sum(1)

    def state_dict(self) -> dict[str, Tensor]:
        return {"combined_factor": self.factor, **self.sparse.state_dict(), **self.thin.state_dict()}

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], dtype: torch.dtype, size: int | None = None
    ) -> LowRankAndNeighboursInverse:
        sparse = SparseInverse.from_state_dict(state, dtype, size)
        thin = LowRank.from_state_dict(state, dtype, size=sparse.size)
        return cls(saved_tensor(state, "combined_factor", (sparse.size, thin.rank)), sparse, thin)
