"""The settings of SVGP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rtgp._methods.checks import check_positive_integers, size_within
from rtgp._methods.facts import VARIATIONAL, AnyMethod

INDUCING = 1024


@dataclass(frozen=True)
class SVGP(AnyMethod):
    """Stochastic variational Gaussian process (Hensman et al. 2013): a Gaussian over the values at inducing points.

    The inducing points begin at k-means centres. At the start of every epoch and at the end, the Gaussian over them is
    brought to its optimum for the present hyperparameters, by one more pass over the data.

    Parameters
    ----------
    inducing : int, optional
        The number m of inducing points. A step takes O(m^3) time. By default 1,024, or all points where there are
        fewer.
    batch_size : int, optional
        Points in a step. By default 1,024, or all points where there are fewer.
    epochs : int
        Passes over the data, but at least 100 steps. `steps` of GPRegressor counts steps instead.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> gp = rtgp.GPRegressor(method=rtgp.SVGP(inducing=10), steps=20, random_state=0)
    >>> gp.fit(X, np.sin(6 * X[:, 0])).predict(X[:3]).shape
    (3,)
    """

    family: ClassVar[str] = VARIATIONAL
    own_likelihood: ClassVar[bool] = True

    inducing: int | None = None
    batch_size: int | None = None
    epochs: int = 10

    def __post_init__(self) -> None:
        check_positive_integers(self, "inducing", "batch_size")
        check_positive_integers(self, "epochs", optional=False)

    def sizes(self, n: int) -> tuple[int, int]:
        """The sizes for a given number of points.

        Parameters
        ----------
        n : int
            The number of points.

        Returns
        -------
        tuple of int
            Inducing points, and points in a step.
        """
        return (
            size_within(self, "inducing", INDUCING, n),
            size_within(self, "batch_size", INDUCING, n),
        )

    def clamped(self, n: int) -> str:
        return f"as many inducing points as rows, {n:,}" if self.inducing is None and self.sizes(n)[0] == n else ""

    def _remedy(self, n: int) -> str:
        return "Take fewer inducing points, as in rtgp.SVGP(inducing=...)"
