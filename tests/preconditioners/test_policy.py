"""When the preconditioner is made anew and of what rank: decided from the past and the hyperparameters alone."""

from __future__ import annotations

import math

import pytest
import torch

import rtgp
from models import Regression, gradient
from rtgp._kernels import read_covariance
from rtgp._preconditioners import Identity
from rtgp._preconditioners import policy as policy_module
from rtgp._preconditioners.policy import Policy
from rtgp._preconditioners.policy_settings import PolicySettings
from rtgp._preconditioners.shape import Costs, DeviceCosts, Shape
from rtgp._solvers import NoiseUnits
from rtgp.operators import make_from_form

N = 600
COLUMNS = 3
FIRST = math.isqrt(2 * N * COLUMNS)  # 60
# Costs that stay, whatever is measured on a new machine: in them the cases below are worked out.
COSTS = Costs(cpu=DeviceCosts(thin=4.0, sparse=30.0, begin=0.0, search=0.0, factor=14.0, entry=1300.0, across=2200.0))
SETTINGS = PolicySettings(costs=COSTS)
SMOOTH, ROUGH = (0.4, 1.0, 0.05), (0.05, 2.0, 0.01)  # lengthscale, outputscale, noise
DECAYING = (0.2, 1.0, 0.001), (0.15, 20.0, 0.01)  # two, far apart, whose eigenvalues fall fast
ROUGHER = (0.15, 1.0, 0.001), (0.12, 20.0, 0.001)  # two whose eigenvalues fall later
FLAT = (0.05, 0.01, 0.01), (0.05, 100.0, 0.01)  # two whose eigenvalues hardly fall


def model(n: int = N) -> Regression:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    y = torch.sin(5 * x[:, 0]) + 0.1 * torch.randn(n, dtype=torch.float64, generator=generator)
    return Regression(x, y)


def system(point=SMOOTH, n: int = N) -> NoiseUnits:
    own = model(n).set(*point)
    form = read_covariance(own(*own.train_inputs).lazy_covariance_matrix)
    return NoiseUnits(make_from_form(form), own.likelihood.noise.reshape(()))


@pytest.fixture(scope="module")
def smooth() -> NoiseUnits:
    return system(SMOOTH)


@pytest.fixture(scope="module")
def rough() -> NoiseUnits:
    return system(ROUGH)


def automatic(rank: int | None = None) -> Policy:
    return Policy(rtgp.PivotedCholesky(rank), None, COLUMNS, settings=SETTINGS)


def call(
    upkeep: Policy, of: NoiseUnits, iterations: int, seed: int = 0, keep: bool = False, noise: float = 0.0
) -> tuple[bool, int]:
    """Whether the preconditioner was made anew for a run of so many iterations, and its rank."""
    preconditioner, rebuilt = upkeep.preconditioner(of, torch.Generator().manual_seed(seed), keep)
    upkeep.used(iterations, noise)
    return rebuilt, preconditioner.rank


def price(rank: int) -> float:
    """Of a preconditioner, in iterations."""
    shape, cpu = Shape(rank), torch.device("cpu")
    return COSTS.build(N, shape, cpu) / COSTS.iteration(N, shape, COLUMNS, cpu)


class TestNoise:
    """Of gradients, that grows as the hyperparameters leave a preconditioner behind."""

    NEAR = (0.41, 1.05, 0.05)  # longer runs alone would not pay for another one

    def noises(self, upkeep: Policy, smooth: NoiseUnits, *noises: float) -> list[bool]:
        """Whether it was made anew for each call: on the smooth system, and from the second on near it."""
        points = [smooth] + [system(self.NEAR)] * (len(noises) - 1)
        return [call(upkeep, of, 25, noise=noise)[0] for of, noise in zip(points, noises, strict=True)]

    def test_that_stays_as_it_is_changes_nothing(self, smooth):
        assert self.noises(automatic(), smooth, *[1e-4] * 20) == [True] + [False] * 19

    def test_that_is_not_known_changes_nothing(self, smooth):
        assert self.noises(automatic(), smooth, *[0.0] * 5) == [True] + [False] * 4
        assert self.noises(automatic(), smooth, 0.0, 1.0, 1.0) == [True, False, False]

    def test_that_grows_is_worth_a_new_one(self, smooth):
        upkeep = automatic()
        assert self.noises(upkeep, smooth, 1e-4, 1e6, 1.0) == [True, False, True]
        # It knows by now: the next one is not used twice either, once the kernel has moved as far again.
        assert call(upkeep, smooth, 25, noise=1e-4)[0]
        assert not call(upkeep, smooth, 25, noise=1e-4)[0]  # where it was made for

    def test_is_remembered_in_its_state(self, smooth):
        first, second = automatic(), automatic()
        self.noises(first, smooth, 1e-4, 1e6)
        second.load_state_dict(first.state_dict(), torch.float64)
        assert second.state_dict()["growth"].tolist() == first.state_dict()["growth"].tolist() != [0.0, 0.0]
        assert call(second, system(self.NEAR), 25)[0]
        second.reset()
        assert second.state_dict()["growth"].tolist() == [0.0, 0.0]


class TestFixedRefresh:
    @pytest.mark.parametrize("refresh", [1, 3, 10])
    def test_after_so_many_calls(self, smooth, refresh):
        upkeep = Policy(rtgp.PivotedCholesky(), refresh, COLUMNS)
        found = [call(upkeep, smooth, 20) for _ in range(12)]
        assert [rebuilt for rebuilt, _ in found] == [k % refresh == 0 for k in range(12)]

    def test_whatever_happens_meanwhile(self, smooth, rough):
        upkeep = Policy(rtgp.PivotedCholesky(8), 3, COLUMNS)
        found = [call(upkeep, of, j) for of, j in ((smooth, 5), (rough, 500), (smooth, 900), (smooth, 5))]
        assert found == [(True, 8), (False, 8), (False, 8), (True, 8)]

    def test_through_the_objective(self):
        own = model(80).set(*SMOOTH)
        method = rtgp.RRCG(refresh=4)
        mll = rtgp.MarginalLogLikelihood(own.likelihood, own, method, torch.Generator().manual_seed(0))
        rebuilt = []
        for _ in range(9):
            gradient(own, mll)
            rebuilt.append(mll.last.rebuilt)
        assert rebuilt == [k % 4 == 0 for k in range(9)]


class TestWhenItPays:
    def test_never_while_nothing_changes(self, smooth):
        upkeep = automatic()
        assert [call(upkeep, smooth, 25)[0] for _ in range(60)] == [True] + [False] * 59

    def test_at_once_after_a_large_change(self, smooth, rough):
        upkeep = automatic()
        call(upkeep, smooth, 25)
        call(upkeep, smooth, 25)
        assert call(upkeep, rough, 25)[0]

    def test_not_after_a_small_change(self, smooth):
        upkeep = automatic()
        call(upkeep, smooth, 25)
        assert not call(upkeep, system((0.404, 1.01, 0.0505)), 25)[0]

    def test_once_longer_runs_have_cost_as_much(self, smooth):
        upkeep = automatic()
        _, rank = call(upkeep, smooth, 25)
        found = [call(upkeep, smooth, 27)[0] for _ in range(40)]
        assert found.index(True) == math.ceil(price(rank) / 2)  # two iterations too many in each

    def test_after_a_checkpoint_that_looked_at_other_points(self, smooth):
        upkeep = automatic()
        call(upkeep, smooth, 25)
        state = upkeep.state_dict()
        state["sample"] = torch.eye(256, dtype=torch.float64)
        upkeep.load_state_dict(state, torch.float64)
        assert call(upkeep, smooth, 25)[0]

    def test_never_where_it_is_to_be_kept(self, smooth, rough):
        upkeep = automatic()
        call(upkeep, smooth, 25)
        assert not any(call(upkeep, rough, 500, keep=True)[0] for _ in range(5))

    def test_without_a_preconditioner(self, smooth):
        upkeep = Policy(None, None, COLUMNS)
        preconditioner, rebuilt = upkeep.preconditioner(smooth, torch.Generator(), False)
        upkeep.used(10)
        assert isinstance(preconditioner, Identity)
        assert not rebuilt

    def test_anew_after_a_reset(self, smooth):
        upkeep = automatic()
        call(upkeep, smooth, 300)
        upkeep.reset()
        assert call(upkeep, smooth, 300) == (True, FIRST)

    def test_anew_but_as_large_in_another_precision(self):
        upkeep = automatic()
        call(upkeep, system(DECAYING[0]), 200)
        grown = call(upkeep, system(DECAYING[1]), 200)[1]
        assert grown == 2 * FIRST
        upkeep.forget()
        rebuilt, rank = call(upkeep, system(DECAYING[1]), 200)
        assert rebuilt
        assert rank > 1.8 * FIRST  # a few columns less than asked for


def ranks(points, iterations: int, n: int = N, columns: int = COLUMNS) -> list[int]:
    """Of six preconditioners, one after the other, all runs being so long; hyperparameters jump to and fro."""
    upkeep, found = Policy(rtgp.PivotedCholesky(), None, columns, settings=SETTINGS), []
    for k in range(6):
        rebuilt, rank = call(upkeep, system(points[k % 2], n), iterations, seed=k)
        assert rebuilt
        found.append(rank)
    return found


class TestRank:
    def test_grows_with_long_runs_up_to_a_half(self):
        found = ranks(DECAYING, 200)
        assert found[:2] == [FIRST, 2 * FIRST]
        assert 2 * FIRST <= min(found[2:]) < max(found[2:]) <= N // 2
        assert ranks(ROUGHER, 10**5, 200)[2:] == [100] * 4

    def test_does_not_grow_where_that_would_not_shorten_the_runs(self):
        found = ranks(FLAT, 200)
        assert found == sorted(found, reverse=True)
        assert found[-1] < FIRST

    def test_falls_with_short_runs_but_not_below_half_of_the_first(self):
        found = ranks(FLAT, 4)
        assert found[0] == FIRST
        assert found == sorted(found, reverse=True)
        assert found[-1] == FIRST // 2

    def test_is_at_most_the_first_where_that_is_more_than_a_half(self):
        first = math.isqrt(2 * 60 * 12)
        assert first > 60 // 2
        assert ranks(DECAYING, 1000, 60, 12) == [first] * 6

    def test_is_the_first_where_refreshes_are_counted(self):
        upkeep = Policy(rtgp.PivotedCholesky(), 1, COLUMNS)
        assert [call(upkeep, system(point), 200) for point in DECAYING] == [(True, FIRST)] * 2

    def test_is_never_what_cannot_be_changed(self, smooth, rough):
        upkeep = automatic(rank=7)
        assert [call(upkeep, of, 500) for of in (smooth, rough, smooth)] == [(True, 7)] * 3

    def test_is_what_memory_allows_and_that_is_said_once(self, smooth, rough, monkeypatch, caplog):
        monkeypatch.setattr(policy_module, "largest_rank", lambda system, settings: 5)
        upkeep = automatic()
        assert [call(upkeep, of, 500)[1] for of in (smooth, rough)] == [5, 5]
        told = [record.message for record in caplog.records]
        assert len(told) == 1
        assert f"a preconditioner of rank 5, where rank {FIRST} would pay" in told[0]

    def test_greedy_pivots_serve_too(self):
        """They note no course of the eigenvalues: a moderate fall is assumed."""
        upkeep = Policy(rtgp.PivotedCholesky(pivoting="greedy"), None, COLUMNS)
        found = [call(upkeep, system(point), 200) for point in DECAYING]
        assert found[0] == (True, FIRST)
        assert found[1][0]
        assert FIRST // 2 <= found[1][1] <= 2 * FIRST


def course(length: int) -> list[tuple[tuple[float, float, float], int]]:
    """Hyperparameters and iterations as a training run might have them."""
    generator = torch.Generator().manual_seed(5)
    drift = torch.randn(length, 3, generator=generator, dtype=torch.float64).cumsum(0) * 0.1
    iterations = torch.randint(15, 60, (length,), generator=generator)
    points = [tuple(a * math.exp(b) for a, b in zip((0.2, 1.0, 0.01), row, strict=True)) for row in drift.tolist()]
    return list(zip(points, iterations.tolist(), strict=True))


class TestPast:
    def test_a_state_taken_up_decides_alike(self):
        path = [(system(point, 200), iterations) for point, iterations in course(24)]
        one = automatic()
        for k, (of, iterations) in enumerate(path[:5]):
            call(one, of, iterations, seed=k)
        two = automatic()
        two.load_state_dict(dict(one.state_dict()), torch.float64)
        decisions = [
            [call(upkeep, of, iterations, seed=k) for k, (of, iterations) in enumerate(path[5:])]
            for upkeep in (one, two)
        ]
        assert decisions[0] == decisions[1]
        rebuilt = [made for made, _ in decisions[0]]
        assert any(rebuilt)
        assert not all(rebuilt)

    @pytest.mark.parametrize("point", [SMOOTH, (0.39, 1.05, 0.052), ROUGH], ids=["the same", "near", "far"])
    def test_the_probes_to_come_decide_nothing(self, point):
        """Unbiasedness rests on this: given past runs and hyperparameters, whether the preconditioner is made anew and
        its rank are the same for whatever random numbers the call will draw, so that its probes and truncations have
        the law they were made to have. (Which pivots are taken is drawn from a stream of its own.)"""
        own = model(200)
        generator = torch.Generator().manual_seed(0)
        mll = rtgp.MarginalLogLikelihood(own.likelihood, own, rtgp.RRCG(), generator)
        for before in ((0.2, 1.0, 0.1), (0.3, 1.0, 0.001), SMOOTH):
            own.set(*before)
            gradient(own, mll)
        past = mll._objective.state_dict()
        own.set(*point)
        decisions, losses = set(), set()
        for seed in range(12):
            mll._objective.load_state_dict(past)
            generator.manual_seed(seed)
            gradient(own, mll)
            decisions.add((mll.last.rebuilt, mll.last.rank))
            losses.add(mll.last.log_det)
        assert len(decisions) == 1
        assert len(losses) == 12  # the draws do differ

    def test_a_run_counts_after_it_is_over(self, smooth):
        """A long run is answered by the next preconditioner, never by its own."""
        upkeep = automatic()
        call(upkeep, smooth, 25)
        assert not call(upkeep, smooth, 10**6)[0]
        assert call(upkeep, smooth, 25)[0]
