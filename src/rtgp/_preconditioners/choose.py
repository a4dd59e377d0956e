"""Which shape of preconditioner makes the cheapest step: candidates are tried with probes that are thrown away.

The cost of a step is the predicted number of iterations times the cost of one, plus the cost of making the
preconditioner, divided by the calls that it serves. A candidate that cannot win is not made. That may be known from its
cost alone, from what fewer neighbours have shown, or because it lost clearly at nearby hyperparameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from rtgp._preconditioners.build import Built
from rtgp._preconditioners.shape import Costs, Shape
from rtgp._preconditioners.trial import Trial


@dataclass(frozen=True)
class ChoiceSettings:
    """How the policy chooses among candidates.

    Attributes
    ----------
    counts : tuple[int, ...]
        Numbers of neighbours to try. The first is always tried, the others while runs are long.
    long : float
        Ratio of residuals at the end of a trial above which larger shapes are tried too.
    doubled : float
        The largest factor by which twice as many neighbours shorten a run (2.3 was seen on kin40k). A count that could
        not win by that is not tried.
    moved : float
        Change of the logarithm of a lengthscale, or of the signal over the noise, after which candidates are tried
        again. Those that lost by a factor f are tried again after log2(2 f) times as much.
    cheap : float
        A preconditioner that costs at most this many of its runs is renewed in every call.
    """

    counts: tuple[int, ...] = (32, 64, 128)
    long: float = 1e-2
    doubled: float = 2.5
    moved: float = 0.7
    cheap: float = 1.0


@dataclass(frozen=True)
class Loser:
    """A kind of shape that was tried and not taken: with a low rank or without, and so many neighbours."""

    with_rank: bool
    count: int
    ratio: float  # of its cost to the winner's
    place: Tensor  # where it was tried

    def is_like(self, shape: Shape) -> bool:
        return (self.with_rank, self.count) == (shape.rank > 0, shape.count)


@dataclass(frozen=True)
class Decision:
    """Which shape, and why; where the hyperparameters were."""

    shape: Shape
    reason: str
    place: Tensor
    iterations: float  # predicted
    losers: tuple[Loser, ...] = ()
    outdated: bool = False  # a run was far longer than predicted: what lost may win


class Choice:
    """Among candidates for one system.

    Parameters
    ----------
    place : Tensor
        Where the hyperparameters are.
    calls : float
        Calls that one preconditioner is to serve.
    build : callable
        Makes a shape, from a pattern of neighbours where there is one.
    """

    def __init__(
        self,
        *,
        n: int,
        columns: int,
        device: torch.device,
        place: Tensor,
        calls: float,
        build: Callable[[Shape, Tensor | None], Built],
        trial: Callable[[Built], Trial],
        settings: ChoiceSettings,
        costs: Costs,
    ) -> None:
        self.n, self.columns, self.device, self.place, self.calls = n, columns, device, place, calls
        self._build, self._trial, self.settings, self.costs = build, trial, settings, costs
        self._pattern: Tensor | None = None
        self._losers: tuple[Loser, ...] = ()
        self._tried: dict[Shape, _Tried] = {}
        self._made: Built | None = None  # the best so far; others are not kept

    def made(
        self, rank: int, with_both: bool, pattern: Tensor | None, before: Decision | None, neighbours: bool = True
    ) -> tuple[Built, Trial, Decision]:
        """The winner, as it was made.

        `rank` is that of shapes with a low rank. `with_both` allows a low rank beside neighbours, and `neighbours`
        allows any.
        """
        self._pattern = pattern
        if before is not None and not before.outdated and before.place.shape == self.place.shape:
            self._losers = before.losers
            # What serves now is likely to win, and then spares most of the others.
            self._attempt(Shape(rank if before.shape.rank else 0, before.shape.count))
        if neighbours:
            self._try_all(rank, with_both)
        else:
            self._attempt(Shape(rank))
        assert self._made is not None
        made = replace(self._made, pattern=self._pattern)  # the widest that was found serves later shapes too
        return made, self._best.trial, self._decision()

    def _try_all(self, rank: int, with_both: bool) -> None:
        few, *more = self.settings.counts
        # The cheaper one to make first: it may spare the other.
        for shape in sorted((Shape(rank), Shape(0, few)), key=lambda s: self.costs.build(self.n, s, self.device)):
            self._attempt(shape)
        for count, before_it in zip(more, self.settings.counts, strict=False):
            if self._best.trial.ratio <= self.settings.long:
                break
            won = self._attempt(Shape(0, count), self._least(Shape(0, before_it), count))
            if not won and self._best.shape.count == 0:
                break  # neighbours do not get near
        if with_both and self._best.trial.ratio > self.settings.long:
            for fewer, count in pairwise(self.settings.counts):
                if not self._attempt(Shape(rank, count), self._least(Shape(rank, fewer), count)):
                    break

    @property
    def _best(self) -> _Tried:
        return min(self._tried.values(), key=lambda one: one.cost)

    def _decision(self) -> Decision:
        best = self._best
        predicted = "; ".join(f"{one.shape}: {one.trial.iterations:.0f}" for one in self._tried.values())
        now = [
            Loser(shape.rank > 0, shape.count, one.cost / best.cost, self.place)
            for shape, one in self._tried.items()
            if one.cost > best.cost
        ]
        still = [one for one in self._losers if not any(one.is_like(shape) for shape in self._tried)]
        return Decision(
            best.shape,
            f"{best.shape} makes the cheapest step; iterations predicted by trials: {predicted}",
            self.place,
            best.trial.iterations,
            (*now, *still),
        )

    def _attempt(self, shape: Shape, least: float = 1.0) -> bool:
        """Try a shape unless it cannot win. Returned is whether it is the best so far. It takes at least `least`
        iterations.
        """
        shape = Shape(shape.rank, min(shape.count, max(self.n - 1, 1)) if shape.count else 0)
        if shape not in self._tried:
            if self._tried and self._hopeless(shape, least):
                return False
            made = self._build(shape, self._pattern)
            self._pattern = made.pattern if made.pattern is not None else self._pattern
            trial = self._trial(made)
            self._tried[shape] = _Tried(made.shape, trial, self._cost(made.shape, trial.iterations))
            if self._tried[shape] is self._best:
                self._made = made
        return self._tried[shape] is self._best

    def _hopeless(self, shape: Shape, least: float) -> bool:
        each = self.costs.iteration(self.n, shape, self.columns, self.device)
        if least * each + self.costs.build(self.n, shape, self.device) / self.calls >= self._best.cost:
            return True
        lost = [loser for loser in self._losers if loser.is_like(shape)]
        return any(distance(one.place, self.place) <= self.settings.moved * math.log2(2.0 * one.ratio) for one in lost)

    def _cost(self, shape: Shape, iterations: float) -> float:
        run = iterations * self.costs.iteration(self.n, shape, self.columns, self.device)
        price = self.costs.build(self.n, shape, self.device)
        return run + price / (1.0 if price <= self.settings.cheap * run else self.calls)

    def _least(self, shape: Shape, count: int) -> float:
        """The smallest number of iterations with this many neighbours, by those with fewer."""
        known = self._tried.get(shape)
        return (
            1.0 if known is None else known.trial.iterations / self.settings.doubled ** math.log2(count / shape.count)
        )


@dataclass(frozen=True)
class _Tried:
    shape: Shape  # as it was made
    trial: Trial
    cost: float  # of a step


def distance(a: Tensor, b: Tensor) -> float:
    """The largest change of a logarithm between two places."""
    return float((a - b).abs().max()) if len(a) else 0.0
