"""Low-rank preconditioners P = L L^T + I from a pivoted Cholesky factorisation of S K S.

Where there are several ranks, each holds its own rows of L. The n x k numbers are then as little copied as K is; what
is small (pivots, the k x k core, sums over rows) is the same on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from rtgp.distributed import Group
from rtgp.errors import SettingError
from rtgp.operators.product import stored_product
from rtgp.operators.triton.availability import usable
from rtgp.state import saved_tensor

Rows = Callable[[Tensor], Tensor]  # index (k,) -> rows (k, n), float64; of many ranks, each its own columns (k, m)
_ALONE = Group.alone()
_ORTHONORMAL = 1e-6  # what rounding may leave of the product of two columns that is 0


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

    def factor(
        self,
        diagonal: Tensor,
        rows: Rows,
        right_hand_sides: int,
        generator: torch.Generator | None,
        rank: int | None = None,
        course: list[tuple[int, float]] | None = None,
        pivots: list[Tensor] | None = None,
        group: Group = _ALONE,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """L (n, k), or this rank's rows of it, float64 with L L^T close to the matrix of the given diagonal and rows.

        rank: in place of that of the settings. course: where (rank, what of the trace a column takes there) is noted
        for every block of pivots: about the eigenvalues of the matrix. pivots: where those are noted. dtype: in which
        the rows were computed; what is below its rounding is left out.
        """
        rank = self.rank_for(diagonal.shape[0], right_hand_sides) if rank is None else rank
        if self.pivoting == "greedy":
            return greedy_pivoted_cholesky(diagonal, rows, rank, pivots, group, dtype)
        return random_pivoted_cholesky(diagonal, rows, rank, generator, course, pivots, group, dtype)


# Below this part of the largest a remaining diagonal entry is rounding: of the rows, or of some hundred columns of L.
_ROUNDING = {torch.float32: 1e-7, torch.float64: 1e-13}


def _negligible(diagonal: Tensor, dtype: torch.dtype) -> float:
    return _ROUNDING[dtype] * float(diagonal.max())


def greedy_pivoted_cholesky(
    diagonal: Tensor,
    rows: Rows,
    rank: int,
    pivots: list[Tensor] | None = None,
    group: Group = _ALONE,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Column by column, the pivot being the largest entry of the remaining diagonal. A card is not waited for."""
    n, own = diagonal.shape[0], group.own(diagonal.shape[0])
    remaining = diagonal.clone()
    factor = diagonal.new_zeros(own.stop - own.start, rank)
    floor = _negligible(diagonal, dtype)
    drawn: list[Tensor] = []
    largest: list[Tensor] = []  # never rising: from the first that is negligible on all are
    for k in range(rank):
        drawn.append(remaining.argmax().reshape(1))
        largest.append(remaining[drawn[k]])
        row = rows(drawn[k])[0]
        column = row - factor[:, :k] @ group.take(factor[:, :k], drawn[k], n)[0]
        column = torch.where(largest[k] > floor, column * largest[k].clamp_min(1e-300).rsqrt(), 0.0)
        factor[:, k] = column
        remaining = group.gather_rows((remaining[own] - column.square()).clamp_min_(0.0), n)
        remaining[drawn[k]] = 0.0
    count = int((torch.cat(largest) > floor).sum())
    if pivots is not None:
        pivots += drawn[:count]
    return factor[:, :count]


def random_pivoted_cholesky(
    diagonal: Tensor,
    rows: Rows,
    rank: int,
    generator: torch.Generator | None,
    course: list[tuple[int, float]] | None = None,
    pivots: list[Tensor] | None = None,
    group: Group = _ALONE,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Blocks of pivots at once, drawn in proportion to the remaining diagonal (Chen, Epperly, Tropp and Webber)."""
    n, own = diagonal.shape[0], group.own(diagonal.shape[0])
    block_size = min(rank, max(16, rank // 10))
    remaining = diagonal.clone()
    factor = diagonal.new_zeros(own.stop - own.start, rank)
    floor = _negligible(diagonal, dtype)
    done = 0
    while done < rank:
        drawable = int((remaining > floor).sum())
        count = min(block_size, rank - done, drawable)
        if count == 0:
            break
        chances = torch.where(remaining > floor, remaining, 0.0).cpu()
        drawn = torch.multinomial(chances, count, replacement=False, generator=generator).to(diagonal.device)
        columns = rows(drawn).T - factor[:, :done] @ group.take(factor[:, :done], drawn, n).T  # (n, count)
        core = group.take(columns, drawn, n)
        new = _divided_by_root(columns, (core + core.T) / 2, floor)
        width = new.shape[1]
        if width == 0:
            break
        factor[:, done : done + width] = new
        remaining = group.gather_rows((remaining[own] - new.square().sum(1)).clamp_min_(0.0), n)
        remaining[drawn] = 0.0
        done += width
        if pivots is not None:
            pivots.append(drawn)
        if course is not None:
            course.append((done, float(group.sum(new.square().sum())) / width))
    return factor[:, :done]


def _divided_by_root(columns: Tensor, core: Tensor, floor: float) -> Tensor:
    """columns R^-T with R R^T = core (k, k), without the directions in which core is not well above rounding."""
    lower, info = torch.linalg.cholesky_ex(core)
    squares = lower.diagonal().square()
    if int(info) == 0 and bool(squares.min() > max(floor, 1e-8 * float(squares.max()))):
        solved: Tensor = torch.linalg.solve_triangular(lower, columns.T, upper=False)
        return solved.T
    # Pivots close to one another make the core nearly singular. Eigenvalues tell, but take far longer.
    eigenvalues, vectors = torch.linalg.eigh(core)
    keep = eigenvalues > max(floor, 1e-10 * float(eigenvalues[-1]))
    divided: Tensor = columns @ (vectors[:, keep] * eigenvalues[keep].rsqrt())
    return divided


class LowRankPlusIdentity:
    """P = L L^T + I with L = Q R, applied so that it stays positive definite in float32.

    P = (I - Q Q^T) + Q C C^T Q^T with C C^T = R R^T + I, hence P^-1 = (I - Q Q^T)^2 + Q C^-T C^-1 Q^T. Projecting twice
    removes what rounding left of Q in the first projection; the Woodbury form would subtract two large numbers instead.

    factor: L (n, k), or of many ranks each its own rows, n then being given.
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
        self.group, self.size, self.rank = group, size, q.shape[1]
        self.own = group.own(size)
        self._q, self._c = q, c  # (n, k) orthonormal, of which the own rows; (k, k) lower triangular; both float64
        identity = torch.eye(self.rank, dtype=c.dtype, device=c.device)
        self._logdet = 2.0 * c.diagonal().log().sum().cpu()
        self._inverse: Tensor = torch.linalg.solve_triangular(c, identity, upper=False).contiguous()  # C^-1
        self._working = {t: (q.to(t), q.T.to(t).contiguous()) for t in {torch.float64, dtype}}
        self._fused = group.size == 1 and usable(q.device)
        if self._fused:
            from rtgp.solvers.projection import prepared

            self._working = {t: (prepared(a), prepared(b)) for t, (a, b) in self._working.items()}

    def renew(self, other: LowRankPlusIdentity) -> bool:
        """Become the other one in the same memory, where it has the same shape and that is of use: what has been
        recorded of the solves then holds for the new one."""
        if not (self._fused and other._fused and self._q.shape == other._q.shape):
            return False
        pairs = [(self._q, other._q), (self._c, other._c), (self._inverse, other._inverse)]
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
    ) -> LowRankPlusIdentity:
        """size: n, where it is known. What is no such preconditioner is refused: its probes would have another
        covariance than its solves, which is bias."""
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

    def solve(self, r: Tensor) -> tuple[Tensor, Tensor]:
        q, q_transposed = self._working[r.dtype]
        if self._fused:
            from rtgp.solvers import projection

            return projection.solve(q, q_transposed, self._inverse, r)
        group, r = self.group, r[self.own]
        inside = group.sum(stored_product(q_transposed, r))  # (k, m)
        outside = r - stored_product(q, inside)
        outside -= stored_product(q, group.sum(stored_product(q_transposed, outside)))
        damped = self._inverse @ inside.double()  # small, and the one place where float32 would lose definiteness
        squares = outside.square().sum(0, dtype=torch.float64)
        solved = outside + stored_product(q, (self._inverse.T @ damped).to(r.dtype))
        whole, parts = group.gather_with(solved, self.size, squares)
        return whole, parts.sum(0) + damped.square().sum(0)

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

    def sqrt_matmul(self, v: Tensor) -> Tensor:
        """G v with G G^T = P, G = (I - Q Q^T) + Q C Q^T, float64."""
        inside = self.group.sum(self._q.T @ v[self.own])
        coloured: Tensor = v[self.own] + self._q @ (self._c @ inside - inside)
        return self.group.gather_rows(coloured, self.size)


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


class IdentityPreconditioner:
    """P = I: no preconditioner."""

    rank = 0

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
    factor = settings.factor(diagonal, rows, 1, generator, dtype=dtype)
    left = (diagonal - factor.square().sum(1)).clamp_min(0.0).mean()
    scale = max(float(left), 1e-12 * float(diagonal.mean()))
    return ScaledPreconditioner(LowRankPlusIdentity(factor / math.sqrt(scale), dtype), scale)
