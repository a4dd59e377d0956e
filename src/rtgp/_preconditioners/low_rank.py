"""P = L L^T + I: the low-rank preconditioner, for smooth functions in noise.

Where there are several ranks, each holds its own rows of L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rtgp._preconditioners.pivoted_cholesky import PivotedCholesky, Rows
from rtgp._preconditioners.protocol import Preconditioner
from rtgp._state import saved_scalar, saved_tensor
from rtgp.distributed import Group
from rtgp.operators._gpu.availability import usable
from rtgp.operators._product import stored_product

_ALONE = Group.alone()
_ORTHONORMAL = 1e-6  # what rounding may leave of the product of two columns that is 0


class LowRank(Preconditioner):
    """P = F F^T = L L^T + I with L = Q R and F = (I - Q Q^T) + Q C Q^T, C C^T = R R^T + I.

    F^-1 = I + Q (C^-1 - I) Q^T takes two thin products. Its error in float32 grows like the root of the largest
    eigenvalue of L L^T; the Woodbury form would subtract two large numbers instead.

    Parameters
    ----------
    factor : Tensor
        L (n, k), or of many ranks each its own rows, n then being given.
    """

    def __init__(self, factor: Tensor, dtype: torch.dtype, group: Group = _ALONE, n: int | None = None) -> None:
        size = factor.shape[0] if n is None else n
        q, r = orthonormal_columns(factor, group, size)
        core = r @ r.T
        core.diagonal().add_(1.0)
        self._set(q, torch.linalg.cholesky(core), dtype, group, size)

    def _set(self, q: Tensor, c: Tensor, dtype: torch.dtype, group: Group, size: int) -> None:
        # One layout, however they came about: the same numbers from a checkpoint then give the same bits.
        q, c = q.contiguous(), c.contiguous()
        self.group, self.size, self.rank, self.neighbours = group, size, q.shape[1], 0
        self.own = group.own(size)
        self._q, self._c = q, c  # (n, k) orthonormal, of which the own rows; (k, k) lower triangular; both float64
        identity = torch.eye(self.rank, dtype=c.dtype, device=c.device)
        self._logdet = 2.0 * c.diagonal().log().sum().cpu()
        self._inverse: Tensor = torch.linalg.solve_triangular(c, identity, upper=False).contiguous()  # C^-1
        self._shrink = self._inverse - identity  # C^-1 - I
        self._working = {t: (q.to(t), q.T.to(t).contiguous()) for t in {torch.float64, dtype}}
        self._fused = group.size == 1 and usable(q.device)
        if self._fused:
            from rtgp.operators._gpu.stored import prepared

            self._working = {t: (prepared(a), prepared(b)) for t, (a, b) in self._working.items()}

    def renew(self, other: Preconditioner) -> bool:
        if not isinstance(other, LowRank):
            return False
        if not (self._fused and other._fused and self._q.shape == other._q.shape):
            return False
        pairs = [(self._q, other._q), (self._c, other._c), (self._inverse, other._inverse)]
        pairs.append((self._shrink, other._shrink))
        for dtype, working in self._working.items():
            pairs += zip(working, other._working[dtype], strict=True)
        for mine, new in pairs:
            mine.copy_(new)
        self._logdet = other._logdet
        return True

    def state_dict(self) -> dict[str, Tensor]:
        """The whole of Q, on every rank: it does not depend on how many there are."""
        return {"preconditioner_q": self.group.gather_rows(self._q, self.size), "preconditioner_c": self._c}

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], dtype: torch.dtype, group: Group = _ALONE, size: int | None = None
    ) -> LowRank:
        """Read it back, for n = `size` points where that is known.

        What is no such preconditioner is refused: its probes would have another covariance than its solves, which is
        bias.
        """
        q = saved_tensor(state, "preconditioner_q", (size, None))
        n, k = q.shape
        c = saved_tensor(state, "preconditioner_c", (k, k))
        if not torch.equal(c, c.tril()) or not bool((c.diagonal() > 0.0).all()):
            raise ValueError("'preconditioner_c' must be lower triangular with a positive diagonal.")
        # A few combinations of the columns tell as much as all products of two, for a k-th of the cost.
        some = torch.randn(k, 4, dtype=q.dtype, generator=torch.Generator().manual_seed(0)).to(q.device)
        if not torch.allclose(q.T @ (q @ some), some, rtol=0.0, atol=_ORTHONORMAL * math.sqrt(k)):
            raise ValueError("'preconditioner_q' must have orthonormal columns.")
        made = cls.__new__(cls)
        made._set(q[group.own(n)], c, dtype, group, n)
        return made

    def logdet(self) -> Tensor:
        """log |P|, float64 on the CPU."""
        return self._logdet

    def whiten(self, v: Tensor) -> Tensor:
        return self._projected(v, self._shrink)

    def whiten_transpose(self, v: Tensor) -> Tensor:
        return self._projected(v, self._shrink.T)

    def _projected(self, v: Tensor, core: Tensor) -> Tensor:
        """v + Q core Q^T v. What is small is in float64: float32 would not keep it apart from Q Q^T v."""
        q, q_transposed = self._working[v.dtype]
        if self._fused:
            from rtgp.operators._gpu.stored import thin_product

            v = v.contiguous()
            return v + thin_product(q, (core @ thin_product(q_transposed, v).double()).to(v.dtype))
        group, own = self.group, v[self.own]
        inside = group.sum(stored_product(q_transposed, own))  # (k, r)
        return group.gather_rows(own + stored_product(q, (core @ inside.double()).to(v.dtype)), self.size)

    @property
    def basis(self) -> Tensor:
        """Q (n, k), or this rank's rows of it, float64."""
        return self._q

    @property
    def core_inverse(self) -> Tensor:
        """C^-1 (k, k), float64: P^-1 Q = Q C^-T C^-1."""
        return self._inverse

    def inverse_diagonal(self) -> Tensor:
        """The diagonal of P^-1, (n,), float64."""
        diagonal: Tensor = 1.0 - self._q.square().sum(1) + (self._q @ self._inverse.T).square().sum(1)
        return self.group.gather_rows(diagonal, self.size)


def orthonormal_columns(factor: Tensor, group: Group = _ALONE, n: int | None = None) -> tuple[Tensor, Tensor]:
    """Q (n, k) and R (k, k) with Q R = factor (n, k); of many ranks, each its own rows of factor and Q.

    Cholesky's factor of the Gram matrix, twice: products alone, many times faster than Householder's reflections, which
    are the way out where the columns are too nearly dependent for it.
    """
    # Any scale of this size will do: of many ranks, the sum of their norms.
    norms = group.sum(torch.linalg.vector_norm(factor, dim=0)).clamp_min(1e-300)
    q, r = factor / norms, torch.diag(norms)
    for attempt in range(2):
        gram = group.sum(q.T @ q)
        off = gram - torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
        lower, info = torch.linalg.cholesky_ex(gram)
        if int(info) != 0 or (attempt == 1 and float(off.square().sum()) > 1e-4):
            size = factor.shape[0] if n is None else n
            whole, r = torch.linalg.qr(group.gather_rows(factor, size))
            return whole[group.own(size)], r
        q = torch.linalg.solve_triangular(lower, q.T, upper=False).T.contiguous()
        r = lower.T @ r
    return q, r


class Scaled(Preconditioner):
    """scale * P: a low-rank part over a multiple of the identity, for matrices not in units of their noise."""

    def __init__(self, inner: LowRank, scale: float) -> None:
        self._inner, self._scale, self._root = inner, scale, math.sqrt(scale)
        self.size, self.rank, self.neighbours = inner.size, inner.rank, 0

    def logdet(self) -> Tensor:
        return self._inner.logdet() + self.size * math.log(self._scale)

    def whiten(self, v: Tensor) -> Tensor:
        return self._inner.whiten(v).div_(self._root)

    def whiten_transpose(self, v: Tensor) -> Tensor:
        return self._inner.whiten_transpose(v).div_(self._root)

    def inverse_diagonal(self) -> Tensor:
        return self._inner.inverse_diagonal() / self._scale

    def state_dict(self) -> dict[str, Tensor]:
        return {**self._inner.state_dict(), "scale": torch.tensor(self._scale, dtype=torch.float64)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], dtype: torch.dtype, size: int | None = None) -> Scaled:
        scale = saved_scalar(state, "scale", (0.0, math.inf))
        if scale == 0.0:
            raise ValueError("'scale' must be positive. Got 0.")
        return cls(LowRank.from_state_dict(state, dtype, size=size), scale)


def low_rank_of_matrix(
    settings: PivotedCholesky, diagonal: Tensor, rows: Rows, dtype: torch.dtype, generator: torch.Generator | None
) -> Scaled:
    """L L^T + c I for any symmetric positive definite matrix, c the mean of what L L^T leaves on its diagonal."""
    factor = settings.factor(diagonal, rows, 1, generator, dtype=dtype)
    left = (diagonal - factor.square().sum(1)).clamp_min(0.0).mean()
    scale = max(float(left), 1e-12 * float(diagonal.mean()))
    return Scaled(LowRank(factor / math.sqrt(scale), dtype), scale)
