"""Settings of further methods to compare with: SVGP, POE, sgGP (the paper's) and Vecchia's likelihood.

sgGP and Vecchia are other likelihoods of the same model, so that they go wherever the likelihood methods go. SVGP and
POE are models of their own: `GPRegressor` makes, trains and predicts from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rtgp.errors import SettingError
from rtgp.objectives import Objective
from rtgp.objectives.sggp import NeighbourObjective, NeighbourSettings
from rtgp.objectives.vecchia import VecchiaObjective, VecchiaSettings
from rtgp.operators.choose import SHARDED

INDUCING = 1024
EXPERT_SIZE = 1024


@dataclass(frozen=True)
class SVGP:
    """Stochastic variational Gaussian process (Hensman et al. 2013): a Gaussian over `inducing` function values.

    inducing: their number, which is m in O(m^3) time for each step; None: 1,024, or all points where there are fewer.
    batch_size: points in a step; None: 1,024, or all points where there are fewer.
    epochs: passes over the data, but at least 100 steps; `steps` of GPRegressor counts steps instead.
    The inducing points begin at k-means centres. At the start of every epoch and at the end, the Gaussian over them is
    brought to its optimum for the present hyperparameters: one more pass over the data.
    """

    inducing: int | None = None
    batch_size: int | None = None
    epochs: int = 10

    def __post_init__(self) -> None:
        check_positive_integers(self, "inducing", "batch_size")
        check_positive_integers(self, "epochs", optional=False)

    def sizes(self, n: int) -> tuple[int, int]:
        """(inducing points, points in a step) for n points."""
        return (
            size_within(self, "inducing", INDUCING, n),
            size_within(self, "batch_size", INDUCING, n),
        )


@dataclass(frozen=True)
class POE:
    """Generalised product of experts (Deisenroth and Ng 2015, Eq. 11 and 12): exact Gaussian processes on disjoint
    random subsets, each with hyperparameters of its own, multiplied with equal weights that sum to one.

    expert_size: points of each expert, O(expert_size^3) time for each; the last is filled up with points of the
    first. None: 1,024, or all points where there are fewer.
    operator: "sharded" divides the experts among the ranks of `rtgp.distributed.start()`; "auto": one process has all.
    """

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
        """Points of each expert, for n points."""
        return size_within(self, "expert_size", EXPERT_SIZE, n)


@dataclass(frozen=True)
class SGGP:
    """Stochastic gradients from sets of neighbours (Chen et al. 2020); predicts as an exact Gaussian process.

    neighbours: with each random point; None: 15, or as many as there are.
    centres: random points whose sets make one step, drawn without replacement.
    """

    neighbours: int | None = None
    centres: int = 1024

    def __post_init__(self) -> None:
        check_positive_integers(self, "neighbours")
        check_positive_integers(self, "centres", optional=False)

    def make_objective(self, frozen: bool = False) -> Objective:
        return NeighbourObjective(NeighbourSettings(self.neighbours, self.centres))


@dataclass(frozen=True)
class Vecchia:
    """The likelihood of each point given its nearest earlier points in a random order (Vecchia 1988), in float64.

    neighbours: that each point is conditioned on; with as many as there are it is exact. A prediction is made from
    twice as many training points, the nearest.
    rows: points whose conditional densities stand for those of all, drawn at random once; None: all.
    """

    neighbours: int = 20
    rows: int | None = None

    def __post_init__(self) -> None:
        check_positive_integers(self, "neighbours", optional=False)
        check_positive_integers(self, "rows")

    @property
    def predictive_neighbours(self) -> int:
        return 2 * self.neighbours

    def make_objective(self, frozen: bool = False) -> Objective:
        return VecchiaObjective(VecchiaSettings(self.neighbours, self.rows))


# Whose likelihood is not that of the exact model, though they train one.
OTHER_LIKELIHOODS = (SGGP, Vecchia)


def check_positive_integers(method: Any, *names: str, optional: bool = True) -> None:
    for name in names:
        value = getattr(method, name)
        if optional and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingError(
                f"The '{name}' parameter of {type(method).__name__} must be a positive integer"
                f"{' or None' if optional else ''}. Got {value!r} instead."
            )


def size_within(method: Any, name: str, default: int, n: int) -> int:
    """The size asked for, which the data must allow; the default as far as they do."""
    asked: int | None = getattr(method, name)
    if asked is None:
        return min(default, n)
    if asked > n:
        raise SettingError(
            f"The '{name}' parameter of {type(method).__name__} must be at most the number of points. Got {asked:,} "
            f"for {n:,} points: ask for fewer, or leave it out ({default:,}, or all where there are fewer)."
        )
    return asked
