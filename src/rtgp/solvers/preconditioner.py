"""Low-rank preconditioners P = L L^T + I from a pivoted Cholesky factorisation of S K S."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from rtgp.errors import SettingError
from rtgp.operators.product import stored_product

Rows = Callable[[Tensor], Tensor]  # index (k,) -> rows (k, n), float64


class Preconditioner(Protocol):
    """Any symmetric positive definite P."""

    def solve(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """P^-1 r, (n, k), and r^T P^-1 r per column, (k,) float64 and never negative."""
        ...


@dataclass(frozen=True)
class PivotedCholesky:
    """Settings of a low-rank preconditioner.

    rank: columns of L; None chooses sqrt(2 n r) for r right-hand sides, which costs about one product with K.
    pivoting: "greedy" takes the largest remaining diagonal entry, one at a time; "random" draws blocks of pivots in
    proportion to it (randomly pivoted Cholesky).
    """

    rank: int | None = None
    pivoting: Literal["greedy", "random"] = "random"

    def __post_init__(self) -> None:
        if self.rank is not None and (isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1):
            raise SettingError(
                "The 'rank' parameter of PivotedCholesky must be a positive integer or None. "
                f"Got {self.rank!r} instead."
            )
        if self.pivoting not in ("greedy", "random"):
            raise SettingError(
                "The 'pivoting' parameter of PivotedCholesky must be 'greedy' or 'random'. "
                f"Got {self.pivoting!r} instead."
            )

    def rank_for(self, n: int, right_hand_sides: int) -> int:
        wanted = math.isqrt(2 * n * right_hand_sides) if self.rank is None else self.rank
        return min(wanted, n)

    def factor(self, diagonal: Tensor, rows: Rows, right_hand_sides: int, generator: torch.Generator | None) -> Tensor:
        """L (n, k) float64 with L L^T close to the matrix of the given diagonal and rows."""
        rank = self.rank_for(diagonal.shape[0], right_hand_sides)
        if self.pivoting == "greedy":
            return greedy_pivoted_cholesky(diagonal, rows, rank)
        return random_pivoted_cholesky(diagonal, rows, rank, generator)


def _negligible(diagonal: Tensor) -> float:
    """Below this a remaining diagonal entry is rounding: 1e-7 would be the precision of float32 rows."""
    return 1e-7 * float(diagonal.max())


def greedy_pivoted_cholesky(diagonal: Tensor, rows: Rows, rank: int) -> Tensor:
    """Column by column, the pivot being the largest entry of the remaining diagonal."""
    remaining = diagonal.clone()
    factor = diagonal.new_zeros(diagonal.shape[0], rank)
    floor = _negligible(diagonal)
    for k in range(rank):
        pivot = int(remaining.argmax())
        if remaining[pivot] <= floor:
            return factor[:, :k]
        row = rows(torch.tensor([pivot], device=diagonal.device))[0]
        column = (row - factor[:, :k] @ factor[pivot, :k]) / remaining[pivot].sqrt()
        factor[:, k] = column
        remaining = (remaining - column.square()).clamp_min_(0.0)
        remaining[pivot] = 0.0
    return factor


def random_pivoted_cholesky(diagonal: Tensor, rows: Rows, rank: int, generator: torch.Generator | None) -> Tensor:
    """Blocks of pivots at once, drawn in proportion to the remaining diagonal (Chen, Epperly, Tropp and Webber)."""
    n = diagonal.shape[0]
    block_size = min(rank, max(16, rank // 10))
    remaining = diagonal.clone()
    factor = diagonal.new_zeros(n, rank)
    floor = _negligible(diagonal)
    done = 0
    while done < rank:
        drawable = int((remaining > floor).sum())
        count = min(block_size, rank - done, drawable)
        if count == 0:
            break
        chances = torch.where(remaining > floor, remaining, 0.0).cpu()
        pivots = torch.multinomial(chances, count, replacement=False, generator=generator).to(diagonal.device)
        columns = rows(pivots).T - factor[:, :done] @ factor[pivots, :done].T  # (n, count)
        # Pivots close to one another make the core nearly singular: keep only what is well above rounding.
        eigenvalues, vectors = torch.linalg.eigh((columns[pivots] + columns[pivots].T) / 2)
        keep = eigenvalues > max(floor, 1e-10 * float(eigenvalues[-1]))
        if not bool(keep.any()):
            break
        new = columns @ (vectors[:, keep] * eigenvalues[keep].rsqrt())
        width = new.shape[1]
        factor[:, done : done + width] = new
        remaining = (remaining - new.square().sum(1)).clamp_min_(0.0)
        remaining[pivots] = 0.0
        done += width
    return factor[:, :done]


class LowRankPlusIdentity:
    """P = L L^T + I with L = Q diag(s) V^T, applied so that it stays positive definite in float32.

    P^-1 = (I - Q Q^T)^2 + Q (s^2 + 1)^-1 Q^T. Projecting twice removes what rounding left of Q in the first
    projection; the Woodbury form would subtract two large numbers instead.
    """

    def __init__(self, factor: Tensor, dtype: torch.dtype) -> None:
        q, triangle = torch.linalg.qr(factor)
        u, s = torch.linalg.svd(triangle)[:2]
        self._set(q @ u, s.square(), dtype)

    def _set(self, q: Tensor, s2: Tensor, dtype: torch.dtype) -> None:
        self.size, self.rank = q.shape
        self._q, self._s2 = q, s2  # (n, k) orthonormal, (k,), both float64
        working = q.to(dtype)
        self._working = {torch.float64: (q, q.T), dtype: (working, working.T.contiguous())}

    def state_dict(self) -> dict[str, Tensor]:
        return {"preconditioner_q": self._q, "preconditioner_s2": self._s2}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], dtype: torch.dtype) -> LowRankPlusIdentity:
        made = cls.__new__(cls)
        made._set(state["preconditioner_q"], state["preconditioner_s2"], dtype)
        return made

    @property
    def top_eigenvalue(self) -> float:
        return float(self._s2.max()) + 1.0 if self.rank else 1.0

    def logdet(self) -> Tensor:
        total: Tensor = self._s2.log1p().sum()
        return total

    def solve(self, r: Tensor) -> tuple[Tensor, Tensor]:
        q, q_transposed = self._working[r.dtype]
        inside = stored_product(q_transposed, r)  # (k, m)
        outside = r - stored_product(q, inside)
        outside -= stored_product(q, stored_product(q_transposed, outside))
        squares = outside.square().sum(0, dtype=torch.float64)
        squares += (inside.double().square() / (self._s2 + 1.0)[:, None]).sum(0)
        damped = inside / (self._s2.to(r.dtype) + 1.0)[:, None]
        return outside + stored_product(q, damped), squares

    def sqrt_matmul(self, v: Tensor) -> Tensor:
        """P^(1/2) v with the symmetric square root, float64."""
        growth: Tensor = (self._s2 + 1.0).sqrt() - 1.0
        coloured: Tensor = v + self._q @ (growth[:, None] * (self._q.T @ v))
        return coloured


class IdentityPreconditioner:
    """P = I: no preconditioner."""

    rank = 0
    top_eigenvalue = 1.0

    def logdet(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64)

    def solve(self, r: Tensor) -> tuple[Tensor, Tensor]:
        return r.clone(), r.square().sum(0, dtype=torch.float64)

    def sqrt_matmul(self, v: Tensor) -> Tensor:
        return v.double()


class ScaledPreconditioner:
    """scale * P: a low-rank part over a multiple of the identity, for matrices not in units of their noise."""

    def __init__(self, preconditioner: LowRankPlusIdentity, scale: float) -> None:
        self._inner, self._scale = preconditioner, scale
        self.rank = preconditioner.rank
        self._size = preconditioner.size

    def logdet(self) -> Tensor:
        return self._inner.logdet() + self._size * math.log(self._scale)

    def solve(self, r: Tensor) -> tuple[Tensor, Tensor]:
        solved, squares = self._inner.solve(r)
        return solved / self._scale, squares / self._scale

    def sqrt_matmul(self, v: Tensor) -> Tensor:
        return self._inner.sqrt_matmul(v) * math.sqrt(self._scale)


def low_rank_of_matrix(
    settings: PivotedCholesky, diagonal: Tensor, rows: Rows, dtype: torch.dtype, generator: torch.Generator | None
) -> ScaledPreconditioner:
    """L L^T + c I for any symmetric positive definite matrix, c the mean of what L L^T leaves on its diagonal."""
    factor = settings.factor(diagonal, rows, 1, generator)
    left = (diagonal - factor.square().sum(1)).clamp_min(0.0).mean()
    scale = max(float(left), 1e-12 * float(diagonal.mean()))
    return ScaledPreconditioner(LowRankPlusIdentity(factor / math.sqrt(scale), dtype), scale)
