"""The settings of POE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rtgp._methods.checks import check_positive_integers, size_within
from rtgp._methods.facts import EXPERTS, AnyMethod
from rtgp.errors import SettingError
from rtgp.operators._choose import SHARDED, is_sharded

EXPERT_SIZE = 1024


@dataclass(frozen=True)
class POE(AnyMethod):
    """Generalised product of experts (Deisenroth and Ng 2015, Eq. 11 and 12).

    Exact Gaussian processes on disjoint random subsets, each with its own hyperparameters, are multiplied with equal
    weights that sum to one.

    Parameters
    ----------
    expert_size : int, optional
        Points of each expert, which takes O(expert_size^3) time. The last is filled up with points of the first. By
        default 1,024, or all points where there are fewer.
    operator : {"auto", "sharded"}
        "sharded" divides the experts among the ranks of `rtgp.distributed.start()`.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> gp = rtgp.GPRegressor(method=rtgp.POE(expert_size=20), steps=20, random_state=0)
    >>> gp.fit(X, np.sin(6 * X[:, 0])).predict(X[:3]).shape
    (3,)
    """

    family: ClassVar[str] = EXPERTS
    own_likelihood: ClassVar[bool] = True
    spreads: ClassVar[bool] = True

    expert_size: int | None = None
    operator: str = "auto"

    def __post_init__(self) -> None:
        check_positive_integers(self, "expert_size")
        if self.operator not in ("auto", SHARDED):
            raise SettingError(
                f"The 'operator' parameter of POE must be 'auto' or {SHARDED!r}: experts are divided among ranks, not "
                f"rows. Got {self.operator!r} instead."
            )
        if self.expert_size == 1:
            raise SettingError("The 'expert_size' parameter of POE must be at least 2. Got 1 instead.")

    def size(self, n: int) -> int:
        """The size of an expert for a given number of points.

        Parameters
        ----------
        n : int
            The number of points.

        Returns
        -------
        int
            Points of each expert.
        """
        return size_within(self, "expert_size", EXPERT_SIZE, n)

    @property
    def spread_operator(self) -> str:
        return self.operator if is_sharded(self.operator) else "auto"

    def clamped(self, n: int) -> str:
        return f"one expert of all {n:,} rows" if self.expert_size is None and self.size(n) == n else ""

    def _remedy(self, n: int) -> str:
        return "Take smaller experts, as in rtgp.POE(expert_size=...)"
