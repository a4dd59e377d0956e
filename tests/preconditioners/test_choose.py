"""Which candidates are tried, and which one is taken, with trials that say what they are told to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from rtgp._preconditioners.build import Built
from rtgp._preconditioners.choose import Choice, ChoiceSettings, Decision
from rtgp._preconditioners.protocol import Identity
from rtgp._preconditioners.shape import Costs, DeviceCosts, Shape
from rtgp._preconditioners.trial import Trial

N, COLUMNS, RANK = 1000, 10, 50
# Nothing but the iterations counts, and a little for larger shapes.
CHEAP = DeviceCosts(thin=1e-3, sparse=1e-3, begin=0.0, search=0.0, factor=0.0, entry=0.0, across=0.0)
PLACE = torch.zeros(3, dtype=torch.float64)


@dataclass
class Bench:
    """Iterations of each shape, and what was asked for."""

    iterations: dict[Shape, float]
    costs: DeviceCosts = CHEAP
    place: Tensor = field(default_factory=lambda: PLACE)
    tried: list[Shape] = field(default_factory=list)

    def build(self, shape: Shape, pattern: Tensor | None) -> Built:
        return Built(shape, Identity(N), pattern=torch.zeros(N, shape.count) if shape.count else None)

    def trial(self, made: Built) -> Trial:
        self.tried.append(made.shape)
        iterations = self.iterations[made.shape]
        return Trial(math.exp(-25.0 / iterations), iterations, 1.0)

    def choose(self, before: Decision | None = None, with_both: bool = True, calls: float = 3.0) -> Decision:
        self.tried.clear()
        choice = Choice(
            n=N,
            columns=COLUMNS,
            device=torch.device("cpu"),
            place=self.place,
            calls=calls,
            build=self.build,
            trial=self.trial,
            settings=ChoiceSettings(),
            costs=Costs(cpu=self.costs),
        )
        made, _, decision = choice.made(RANK, with_both, None, before)
        assert made.shape == decision.shape
        return decision


LOW_RANK, FEW, MORE, MANY = Shape(RANK), Shape(0, 32), Shape(0, 64), Shape(0, 128)
BOTH = [Shape(RANK, count) for count in (32, 64, 128)]
HARD = {LOW_RANK: 300.0, FEW: 400.0, MORE: 200.0, MANY: 110.0, BOTH[1]: 90.0, BOTH[2]: 50.0}


def test_two_are_tried_where_the_best_is_short() -> None:
    bench = Bench({LOW_RANK: 300.0, FEW: 3.0})
    assert bench.choose().shape == FEW
    assert bench.tried == [LOW_RANK, FEW]


def test_larger_ones_are_tried_where_runs_are_long() -> None:
    bench = Bench(HARD)
    assert bench.choose().shape == BOTH[2]
    assert bench.tried == [LOW_RANK, FEW, MORE, MANY, *BOTH[1:]]
    assert bench.choose(with_both=False).shape == MANY


def test_more_neighbours_than_can_win_are_not_tried() -> None:
    """Twice as many shorten a run by 2.5 at the most: 64 would take 160 iterations or more."""
    bench = Bench({**HARD, LOW_RANK: 100.0})
    assert bench.choose(with_both=False).shape == LOW_RANK
    assert bench.tried == [LOW_RANK, FEW]


def test_one_that_costs_more_than_it_can_save_is_not_made() -> None:
    """But it is where many calls share it."""
    bench = Bench(HARD, costs=replace(CHEAP, across=1e6))
    assert bench.choose().shape == MANY
    assert all(shape.rank == 0 or shape.count == 0 for shape in bench.tried)
    assert bench.choose(calls=1e4).shape == BOTH[2]


@pytest.mark.parametrize("move, again", [(0.5, False), (1.6, True)])
def test_a_loser_is_tried_again_only_far_away(move: float, again: bool) -> None:
    """It lost by a factor of two: after twice the move that asks for a new choice."""
    bench = Bench({LOW_RANK: 6.0, FEW: 3.0})
    first = bench.choose()
    bench.place = PLACE + move
    assert bench.choose(first).shape == FEW
    assert bench.tried == ([FEW, LOW_RANK] if again else [FEW])
    # What lost there is remembered from there: the nearer place counts.
    assert bench.choose(replace(first, place=bench.place)).losers[0].place is (bench.place if again else PLACE)


def test_after_a_run_far_longer_than_predicted_everything_is_tried() -> None:
    bench = Bench({**HARD, LOW_RANK: 6.0, FEW: 3.0})
    first = bench.choose()
    bench.iterations[FEW] = 60.0
    assert bench.choose(first).shape == FEW
    assert bench.choose(replace(first, outdated=True)).shape == LOW_RANK


def test_few_points_have_no_more_neighbours_than_points() -> None:
    bench = Bench({LOW_RANK: 60.0, Shape(0, 9): 50.0, Shape(RANK, 9): 40.0})
    choice = Choice(
        n=10, columns=COLUMNS, device=torch.device("cpu"), place=PLACE, calls=3.0, build=bench.build,
        trial=bench.trial, settings=ChoiceSettings(), costs=Costs(cpu=CHEAP),
    )  # fmt: skip
    assert choice.made(RANK, True, None, None)[2].shape == Shape(RANK, 9)
    assert bench.tried == [LOW_RANK, Shape(0, 9), Shape(RANK, 9)]
