"""Vecchia's likelihood as a method. Training itself begins at its optimum, so that it is no baseline alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rtgp._methods.checks import check_positive_integers
from rtgp._methods.facts import Method, OptimizerChoice
from rtgp._objectives import EstimateStats, Objective
from rtgp._objectives.vecchia import VecchiaObjective, VecchiaSettings


@dataclass(frozen=True)
class Vecchia(Method):
    """The likelihood of each point given its nearest earlier points in a random order (Vecchia 1988), in float64.

    Parameters
    ----------
    neighbours : int
        Points that each point is conditioned on; with as many as there are it is exact. A prediction is made from twice
        as many training points, the nearest.
    rows : int, optional
        Points whose conditional densities stand for those of all, drawn at random once. By default all.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.random.default_rng(0).uniform(size=(80, 2))
    >>> gp = rtgp.GPRegressor("matern32", method=rtgp.Vecchia(neighbours=10), random_state=0)
    >>> gp.fit(X, np.sin(6 * X[:, 0])).predict(X[:3]).shape
    (3,)
    """

    own_likelihood: ClassVar[bool] = True
    several_outputs: ClassVar[bool] = True
    biased_as: ClassVar[str] = "Vecchia"

    neighbours: int = 20
    rows: int | None = None

    def __post_init__(self) -> None:
        check_positive_integers(self, "neighbours", optional=False)
        check_positive_integers(self, "rows")

    @property
    def noiseless(self) -> bool:
        return self.rows is None

    @property
    def default_optimizer(self) -> OptimizerChoice:
        return OptimizerChoice("lbfgs", "the objective is the same in every call")

    @property
    def conditioned_on(self) -> int:
        return self.neighbours

    @property
    def predictive_neighbours(self) -> int:
        return 2 * self.neighbours

    def make_objective(self, frozen: bool = False) -> Objective:
        return VecchiaObjective(VecchiaSettings(self.neighbours, self.rows))

    def caveat(self, last: EstimateStats | None) -> str:
        return f"the loss is that of each point given {self.neighbours} neighbours, not of all points together"

    def _remedy(self, n: int) -> str:
        return "Take fewer neighbours, as in rtgp.Vecchia(neighbours=...)"
