"""How a posterior is to be computed, which method that means, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from rtgp.errors import SettingError
from rtgp.operators.choose import MEMORY_FRACTION, free_memory, is_sharded

# Up to here Cholesky is chosen: n^3 / 3 operations, a few seconds (1.7e11 on two cores; 1.1e14 on a GPU), and two n x n
# matrices of float64 (1 GiB; 73 GiB), where those fit.
CHOLESKY_LIMIT = {"cpu": 8_000, "cuda": 70_000}
LANCZOS_RANK = 100  # GPyTorch's own default


@dataclass(frozen=True)
class PosteriorSettings:
    """method: "cholesky", "cg" or "auto" (Cholesky up to n = 8,000, or 70,000 on a GPU, where its two n x n matrices
    fit; CG beyond).

    tolerance: of CG. Of the mean, the relative residual |b - A x| / |b| of its linear system, checked on the system
    itself; of exact variances and covariances, an upper bound of their relative error.
    variance: "exact" ("auto" too), or "lanczos" of the given `rank`, which never underestimates (see `lanczos.py`).
    seed: of the preconditioner's pivots and the first Lanczos vector.
    operator: of CG's products, as in `rtgp.operators.make`. "sharded": the work is spread over the ranks of
    `rtgp.distributed.start()`, and every rank must ask the same questions in the same order.
    """

    method: Literal["auto", "cholesky", "cg"] = "auto"
    tolerance: float = 1e-4
    variance: Literal["auto", "exact", "lanczos"] = "auto"
    rank: int | None = None
    seed: int = 0
    operator: str = "auto"

    def __post_init__(self) -> None:
        _one_of("method", self.method, ("auto", "cholesky", "cg"))
        _one_of("variance", self.variance, ("auto", "exact", "lanczos"))
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, float) or not 0.0 < self.tolerance < 1.0:
            raise SettingError(
                "The 'tolerance' parameter of posterior must be a number between 0 and 1, such as 1e-4. "
                f"Got {self.tolerance!r} instead."
            )
        for name, value, least in (("rank", self.rank, 1), ("seed", self.seed, 0)):
            if name == "rank" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SettingError(
                    f"The '{name}' parameter of posterior must be an integer of at least {least}. "
                    f"Got {value!r} instead."
                )
        if self.rank is not None and self.variance != "lanczos":
            raise SettingError(
                "The 'rank' parameter of posterior belongs to variance='lanczos'. "
                f"Got rank={self.rank} with variance={self.variance!r}: leave one of them out."
            )

    def choose(self, n: int, device: torch.device, dtype: torch.dtype = torch.float64) -> tuple[str, str]:
        """("cholesky" or "cg", why). Ranks must agree: theirs does not depend on the memory that one of them finds."""
        if self.method != "auto":
            return self.method, "asked for"
        limit = CHOLESKY_LIMIT.get(device.type, CHOLESKY_LIMIT["cpu"])
        words = f"n = {n:,}, and Cholesky is used up to n = {limit:,} on {device.type}"
        if n > limit:
            return "cg", words
        needed, usable = 2 * dtype.itemsize * n * n, int(MEMORY_FRACTION * free_memory(device))
        if needed > usable and not is_sharded(self.operator):
            short = f"Cholesky needs {needed / 2**30:.1f} GiB and {usable / 2**30:.1f} GiB may be used on {device}"
            return "cg", f"n = {n:,}, {short}"
        return "cholesky", words

    def lanczos_rank(self, n: int) -> int:
        return min(self.rank or LANCZOS_RANK, n)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        names = ", ".join(repr(a) for a in allowed)
        raise SettingError(f"The '{name}' parameter of posterior must be one of {names}. Got {value!r} instead.")


@dataclass(frozen=True)
class PosteriorReport:
    """What a posterior has done so far."""

    method: str  # "cholesky" or "cg"
    reason: str  # why that one
    iterations: int  # of CG, for the mean; 0 for Cholesky
    residual: float  # |b - A x| / |b| of the mean's linear system, computed from x at the end
    tolerance: float
    seconds: float  # to make the posterior ready: reading the model, preconditioner or factor, the mean's solve
    dtype: torch.dtype  # worked in; float64 also where the model is float32 and that would be too coarse
    rank: int  # of the preconditioner; 0 for Cholesky
    variance: str  # "exact", or "lanczos(rank)"
    variance_error: float  # 0 before the first variance. "exact" by CG: the largest bound of a relative error so far;
    # "lanczos": the largest relative excess found at up to 16 training points
