"""Bilinear forms sum_p u_p^T dA v_p whose gradients make the estimate's, all from one pass over K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._objectives.protocol import Batch
from rtgp._solvers import NoiseUnits


@dataclass(frozen=True)
class Term:
    """sum_p u_p^T dA v_p + solve^T d residual, dA = S d(K + noise) S; everything in units of the noise.

    Attributes
    ----------
    less, taken : Tensor | None
        What is taken from v, in part: for the kernel taken[0] times, for the noise taken[1] times. The columns of
        `less` belong to the first ones of v.
    """

    u: Tensor  # (n, k)
    v: Tensor  # (n, k)
    solve: Tensor | None = None  # (n, t): a column for each output
    less: Tensor | None = None  # (n, p)
    taken: Tensor | None = None  # (2,)

    def right(self, part: int) -> Tensor:
        """v of the kernel (0) or of the noise (1)."""
        if self.less is None or self.taken is None or float(self.taken[part]) == 0.0:
            return self.v
        count = self.less.shape[1]
        return torch.cat([self.v[:, :count] - float(self.taken[part]) * self.less, self.v[:, count:]], dim=1)


def evaluated(terms: Sequence[Term], system: NoiseUnits, batch: Batch) -> list[Tensor]:
    """(2,) for each term: the scalars whose gradients are the kernel's part, and that of the noise and the residual."""
    scaled = [(system.scaled(term.u), system.scaled(term.right(0)), term) for term in terms]
    kernels = system.operator.bilinears([(u, v) for u, v, _ in scaled])
    found = []
    for kernel, (u, _, term) in zip(kernels, scaled, strict=True):
        weights = (u.double() * system.scaled(term.right(1)).double()).sum(1)  # dL/dnoise_i
        other = (batch.noise.expand(batch.form.size) * weights.to(batch.noise.dtype)).sum().to(kernel.dtype)
        if term.solve is not None:
            solve = system.scaled(term.solve)
            other = other + (batch.residuals * solve.to(batch.residual.dtype)).sum().to(kernel.dtype)
        found.append(torch.stack([kernel, other]))
    return found
