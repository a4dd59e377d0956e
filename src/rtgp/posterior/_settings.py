"""How a posterior is to be computed, which method that means, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from rtgp.errors import SettingError
from rtgp.operators._choose import MEMORY_FRACTION, free_memory, is_sharded
from rtgp.posterior._conjugate_gradients import SolveSettings
from rtgp.posterior._lanczos import LanczosSettings
from rtgp.posterior._near_variance import NearVarianceSettings
from rtgp.posterior._sampling import PathSettings, SamplingSettings


@dataclass(frozen=True)
class PredictionSettings:
    """Every number that predictions decide by: an ablation sets an argument and patches nothing.

    Attributes
    ----------
    cholesky_up_to, cholesky_on_card_up_to : int
        Points up to which Cholesky is chosen: n^3 / 3 operations, a few seconds (1.7e11 on two cores; 1.1e14 on a GPU),
        and two n x n matrices of float64 (1 GiB; 73 GiB), where those fit.
    memory_on_card : int
        Bytes of a card's free memory that the kernel matrix may take its share of: what a common card has. A mean takes
        a handful of products, and storing K for them in float64 took 83 GiB of an H200 (105,569 points).
    checked : int
        Training points at which a Lanczos variance is compared with the exact one. Chosen, not fitted.
    solve : SolveSettings
        How conjugate gradients solve.
    lanczos : LanczosSettings
        How the fast variance is made.
    sampling : SamplingSettings
        How joint samples are drawn.
    near : NearVarianceSettings
        How variances of very many points are made.
    paths : PathSettings
        How samples that are functions are drawn.
    """

    cholesky_up_to: int = 8_000
    cholesky_on_card_up_to: int = 70_000
    memory_on_card: int = 24 * 2**30
    checked: int = 16
    solve: SolveSettings = field(default_factory=SolveSettings)
    lanczos: LanczosSettings = field(default_factory=LanczosSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    near: NearVarianceSettings = field(default_factory=NearVarianceSettings)
    paths: PathSettings = field(default_factory=PathSettings)


@dataclass(frozen=True)
class PosteriorSettings:
    """How a posterior is computed: the arguments of `rtgp.posterior`, checked.

    Parameters
    ----------
    method : {"auto", "cholesky", "cg"}
        "auto" takes Cholesky up to 8,000 points (70,000 on a GPU) where its two n x n matrices fit, and CG beyond.
    tolerance : float
        Of CG. For the mean, the relative residual `|b - A x| / |b|` of its linear system, checked on the system itself.
        For exact variances and covariances, an upper bound of their relative error.
    variance : {"auto", "exact", "lanczos"}
        "auto" is exact too, but for very many new points: their variances come from their nearest training points and
        are checked at a sample (`near_variance.py`). "lanczos" never underestimates (`lanczos.py`).
    rank : int, optional
        The rank of "lanczos".
    seed : int
        The seed of the preconditioner's pivots and of the first Lanczos vector.
    operator : str
        How CG multiplies with the kernel matrix, as in `rtgp.operators.make`.
    internal : PredictionSettings
        The numbers that decide beside these.

    Examples
    --------
    >>> from rtgp.posterior import PosteriorSettings
    >>> PosteriorSettings(method="cg", tolerance=1e-6).tolerance
    1e-06
    """

    method: Literal["auto", "cholesky", "cg"] = "auto"
    tolerance: float = 1e-4
    variance: Literal["auto", "exact", "lanczos"] = "auto"
    rank: int | None = None
    seed: int = 0
    operator: str = "auto"
    internal: PredictionSettings = field(default_factory=PredictionSettings)

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
        """The method for n training points.

        It does not depend on the free memory where ranks share the work, for they must agree.

        Parameters
        ----------
        n : int
            The number of training points.
        device : torch.device
            Where the predictions are computed.
        dtype : torch.dtype
            In which they are computed.

        Returns
        -------
        tuple of str
            "cholesky" or "cg", and why.
        """
        if self.method != "auto":
            return self.method, "asked for"
        internal = self.internal
        limit = internal.cholesky_on_card_up_to if device.type == "cuda" else internal.cholesky_up_to
        words = f"n = {n:,}, and Cholesky is used up to n = {limit:,} on {device.type}"
        if n > limit:
            return "cg", words
        needed, usable = 2 * dtype.itemsize * n * n, int(MEMORY_FRACTION * free_memory(device))
        if needed > usable and not is_sharded(self.operator):
            short = f"Cholesky needs {needed / 2**30:.1f} GiB and {usable / 2**30:.1f} GiB may be used on {device}"
            return "cg", f"n = {n:,}, {short}"
        return "cholesky", words

    def lanczos_rank(self, n: int) -> int:
        """The rank of a Lanczos variance.

        Parameters
        ----------
        n : int
            The number of training points.

        Returns
        -------
        int
            The rank, at most n.
        """
        return min(self.rank or self.internal.lanczos.rank, n)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        names = ", ".join(repr(a) for a in allowed)
        raise SettingError(f"The '{name}' parameter of posterior must be one of {names}. Got {value!r} instead.")


@dataclass(frozen=True)
class PosteriorReport:
    """What a posterior has done so far.

    Attributes
    ----------
    method : str
        "cholesky" or "cg".
    reason : str
        Why that one.
    iterations : int
        Of CG, for the mean; 0 for Cholesky.
    residual : float
        `|b - A x| / |b|` of the mean's linear system, computed from x at the end.
    tolerance : float
        The largest residual that is accepted.
    seconds : float
        To make the posterior ready: reading the model, the preconditioner or the factor, the mean's solve.
    dtype : torch.dtype
        In which it was computed: float64 where the model is float32 and that would be too coarse.
    rank : int
        Rank of the preconditioner; 0 for Cholesky.
    variance : str
        "exact", "neighbours(count)" or "lanczos(rank)".
    variance_error : float
        0 before the first variance. For "exact" by CG, the largest bound of a relative error so far. For "lanczos" and
        "neighbours", the largest relative excess found, at training points or at a sample of the new ones.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> gp = rtgp.GPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> rtgp.posterior(gp.model_, gp.likelihood_, method="cg").report.method
    'cg'
    """

    method: str
    reason: str
    iterations: int
    residual: float
    tolerance: float
    seconds: float
    dtype: torch.dtype
    rank: int
    variance: str
    variance_error: float
