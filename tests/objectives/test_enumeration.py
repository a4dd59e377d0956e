"""Unbiasedness of CG's series under Russian roulette, exactly: every truncation is enumerated through the real code.

Probes are the n columns of sqrt(n) P^(1/2), whose average of z z^T is P exactly, so that traces and log-determinants
have no Monte Carlo error and the expectation over truncations must equal the Cholesky result itself.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import ClassVar

import gpytorch
import pytest
import torch

import rtgp._objectives.krylov as krylov
from rtgp._kernels import read_kernel
from rtgp._objectives import Batch, CholeskyObjective, KrylovObjective, KrylovSettings, Truncation
from rtgp._objectives.control_coefficients import CoefficientSettings
from rtgp._objectives.krylov import EstimateSettings
from rtgp._preconditioners import Automatic, LowRankAndNeighbours, Neighbours, PivotedCholesky, build
from rtgp._traces import Probes
from rtgp.operators import NearOperator
from rtgp.operators._order import TileSettings
from rtgp.truncation import ExponentialDecay, ResidualDriven, Tabulated, coupled_pair, fixed, russian_roulette

N = 40
TOLERANCE = 1e-13


def make_batch(seed: int = 0, shift: float = 0.0, n: int = N, per_point: bool = False, spread: float = 1.0):
    """A small model; `shift` moves its hyperparameters, as an optimiser's step would. per_point: each with its own
    noise. spread: of the points."""
    generator = torch.Generator().manual_seed(seed)
    x = spread * torch.randn(n, 2, dtype=torch.float64, generator=generator)
    y = torch.sin(3 * x[:, 0]) + 0.3 * torch.randn(n, dtype=torch.float64, generator=generator)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.7 + shift, 1.1 - shift]])
    kernel.outputscale = 1.3 + shift
    noise = torch.tensor(0.3 - shift / 2, dtype=torch.float64)
    if per_point:
        noise = noise * (0.3 + torch.rand(n, dtype=torch.float64, generator=generator))
    noise.requires_grad_()
    mean = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    parameters = [*kernel.parameters(), noise, mean]
    return Batch(read_kernel(kernel, x), noise, y - mean), parameters


def all_directions(kind, n, count, preconditioner, generator, dtype, device):
    e = torch.eye(n, dtype=torch.float64) * n**0.5
    return Probes(e, preconditioner.whiten_transpose(e))


@pytest.fixture(autouse=True)
def exact_probes(monkeypatch):
    monkeypatch.setattr(krylov, "draw_probes", all_directions)


def settings(truncation, preconditioner, warm_start, control=False, n=N, parts=None):
    return KrylovSettings(
        name="rr-cg",
        truncation=truncation,
        probes=n,
        probe_kind="preconditioner",
        preconditioner=preconditioner,
        refresh=100,
        warm_start=warm_start,
        tolerance=TOLERANCE,
        operator="dense",
        control_variate=control,
        internal=EstimateSettings(coefficients=CoefficientSettings(fixed=parts)),
    )


def primed(preconditioner, warm_start, stale, control=False, n=N, per_point=False, parts=None):
    """An objective in the state an earlier optimisation step leaves behind. parts: of the control variate that are
    taken; None: those that are learnt."""
    objective = KrylovObjective(settings(Truncation.plain(6), preconditioner, warm_start, control, n, parts))
    if stale:
        objective(make_batch(shift=0.1, n=n, per_point=per_point)[0], torch.Generator().manual_seed(1))
    return objective


def estimate(objective, weighting, batch, parameters):
    """Gradient, value and the parts of the value of one call with a given weighting; the objective is not changed."""
    objective = copy.deepcopy(objective)
    objective.settings = replace(objective.settings, truncation=weighting)
    result = objective(batch, torch.Generator().manual_seed(2))
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(result.surrogate, parameters, retain_graph=True)])
    parts = torch.tensor([result.value, result.stats.log_det, result.stats.quadratic], dtype=torch.float64)
    return torch.cat([gradient, parts]), result.stats


def exact(batch, parameters):
    result = CholeskyObjective()(batch)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(result.surrogate, parameters, retain_graph=True)])
    parts = torch.tensor([result.value, result.stats.log_det, result.stats.quadratic], dtype=torch.float64)
    return torch.cat([gradient, parts])


def intervals(survival):
    """(probability, a uniform inside) for each J with P(J) > 0, from S_1, ..., S_H."""
    bounds = [*survival, 0.0]
    pairs = itertools.pairwise(bounds)
    return [(high - low, 0.5 * (high + low)) for high, low in pairs if high > low]


def survivals(objective, start, batch, parameters):
    """The survival path of a run that is never truncated."""
    seen = []

    def recording(generator):
        seen.append(start())
        return seen[0]

    estimate(objective, Truncation(recording, 0, 1, 2), batch, parameters)
    return list(seen[0].survival)


def assert_equal(mean, wanted):
    scale = wanted.abs().clamp_min(1.0)
    assert float(((mean - wanted) / scale).abs().max()) < 1e-10


CASES = {
    "no preconditioner": (None, False, False),
    "fresh preconditioner": (PivotedCholesky(15), False, False),
    "stale preconditioner and warm start": (PivotedCholesky(15), True, True),
    "fresh preconditioner, control variate": (PivotedCholesky(15), False, False, True),
    "stale preconditioner and warm start, control variate": (PivotedCholesky(15), True, True, True),
    "warm start alone": (None, True, True),
}
RULES = {
    "residual-driven": ResidualDriven(tau=0.3),
    "exponential decay": ExponentialDecay(rate=0.4, minimum=3),
    "tabulated": Tabulated([0.9**j for j in range(N + 10)]),
}


# Without a preconditioner there are twice as many truncations, and four times as many pairs.
LONG = [(rule, case) for rule in RULES for case in ("no preconditioner", "warm start alone")]
PAIRS = [
    pytest.param(
        RULES[rule], CASES[case], id=f"{rule}, {case}", marks=pytest.mark.slow if (rule, case) in LONG[1:] else ()
    )
    for rule in RULES
    for case in CASES
]


@pytest.mark.parametrize(("rule", "case"), PAIRS)
def test_coupled_pair_has_the_exact_expectation(rule, case):
    """J_z = max(J_1, J_2): all pairs (J_1, J_2)."""
    check_coupled_pair(rule, primed(*case))


def check_coupled_pair(rule, objective):
    batch, parameters = make_batch()
    mean, _ = mean_over_pairs(objective, rule, batch, parameters)
    assert_equal(mean, exact(batch, parameters))


def mean_over_pairs(objective, rule, batch, parameters):
    """The expectation over all pairs of truncations, and how many truncations there are."""
    longest = survivals(objective, lambda: coupled_pair(rule, uniforms=[1e-300, 1e-300]), batch, parameters)
    single = [m / (1 + (1 - m) ** 0.5) for m in longest]
    choices = intervals(single)
    # Both draws end the run at max(J_1, J_2): runs with the same pair of sets of weights need not be repeated.
    mean = torch.zeros(len(exact(batch, parameters)), dtype=torch.float64)
    for (p, u), (q, v) in itertools.combinations_with_replacement(choices, 2):
        value, _ = estimate(objective, start_pair(rule, u, v), batch, parameters)
        mean += p * q * value * (1.0 if u == v else 2.0)  # the pair enters symmetrically
    return mean, len(choices)


@pytest.mark.parametrize("parts", [(0.9, 0.1), (0.0, 1.0)])
def test_whatever_parts_of_the_control_variate_are_taken(parts):
    """Those of the kernel and of the noise have mean zero each."""
    case = CASES["stale preconditioner and warm start, control variate"]
    check_coupled_pair(RULES["residual-driven"], primed(*case, parts=parts))


def start_pair(rule, u, v):
    return Truncation(lambda generator: coupled_pair(rule, uniforms=[u, v]), 0, 1, 2)


INDEPENDENT = [
    pytest.param(case, id=name, marks=pytest.mark.slow if name == "warm start alone" else ())
    for name, case in CASES.items()
]


@pytest.mark.parametrize("case", INDEPENDENT)
def test_independent_truncations_have_the_exact_expectation(case):
    """Three truncations, as in the paper. The estimate is t(J_z) + q(J_1, J_2): both parts enumerated."""
    rule = ExponentialDecay(rate=0.4, minimum=3)
    batch, parameters = make_batch()
    objective = primed(*case)
    choices = intervals(
        survivals(objective, lambda: russian_roulette(rule, 3, uniforms=[1e-300] * 3), batch, parameters)
    )

    def at(*uniforms):
        weighting = Truncation(lambda generator: russian_roulette(rule, 3, uniforms=uniforms), 0, 1, 2)
        return estimate(objective, weighting, batch, parameters)[0]

    a, b, c = (choices[i][1] for i in (2, 7, 4))
    quadratic = sum(
        p * q * at(u, v, c) * (1.0 if u == v else 2.0)
        for (p, u), (q, v) in itertools.combinations_with_replacement(choices, 2)
    )
    trace = sum(p * at(a, b, u) for p, u in choices)
    assert_equal(quadratic + trace - at(a, b, c), exact(batch, parameters))
    # The estimate is indeed additive in the two parts.
    d, e, f = (choices[i][1] for i in (5, 1, 9))
    torch.testing.assert_close(at(d, e, f) - at(d, e, c), at(a, b, f) - at(a, b, c), rtol=0, atol=1e-8)


def test_plain_cg_fails_the_same_check():
    """The test has power: 6 iterations of plain CG are far off."""
    batch, parameters = make_batch()
    value, _ = estimate(primed(None, False, False), Truncation.plain(6), batch, parameters)
    error = (value - exact(batch, parameters)).abs() / exact(batch, parameters).abs().clamp_min(1.0)
    assert float(error.max()) > 1e-3


def test_one_truncation_for_both_solves_is_biased():
    """Two independent truncations are needed in the quadratic term: with a shared one, its expectation is wrong."""
    rule = ResidualDriven(tau=0.3)
    batch, parameters = make_batch()
    objective = primed(None, False, False)
    choices = intervals(
        survivals(objective, lambda: russian_roulette(rule, 3, uniforms=[1e-300] * 3), batch, parameters)
    )
    mean = torch.zeros_like(exact(batch, parameters))
    for p, u in choices:
        shared = Truncation(lambda generator, u=u: russian_roulette(rule, uniforms=[u]), 0, 0, 0)
        mean += p * estimate(objective, shared, batch, parameters)[0]
    assert float((mean - exact(batch, parameters))[:-3].abs().max()) > 1e-6


def test_a_run_to_the_end_is_exact():
    batch, parameters = make_batch()
    value, stats = estimate(primed(None, False, False), Truncation(lambda g: fixed(None), 0, 0, 0), batch, parameters)
    assert_equal(value, exact(batch, parameters))
    assert stats.frozen == N + 1


def test_with_the_tiles_alone_that_count(monkeypatch):
    """Leaving out what is negligible changes A a little, and no expectation: that of the truncated runs is what a run
    to the end gives with the same tiles, and within the stated bound the exact one."""
    few, noise = TileSettings(leaf=4), 0.3
    made = []

    def near(form, operator, least_noise):
        made.append(NearOperator(form, 8, least_noise, settings=few))
        return made[-1]

    monkeypatch.setattr(krylov, "make_from_form", near)
    batch, parameters = make_batch(spread=8.0)
    objective = primed(PivotedCholesky(15), False, False)
    mean, _ = mean_over_pairs(objective, RULES["residual-driven"], batch, parameters)
    whole, _ = estimate(objective, Truncation(lambda g: fixed(None), 0, 0, 0), batch, parameters)
    assert made[0].share < 0.8
    assert_equal(mean, whole)
    assert float((mean - exact(batch, parameters)).abs().max()) <= N * few.bound / noise


class TestEveryPreconditioner:
    """Gradient, value and log|A| with each shape of preconditioner, at coefficients of the control variate that nobody
    would choose. Of so few points the policy takes all into account: the P that it chooses is A while it is fresh."""

    n = 12
    RULE = ResidualDriven(tau=0.3)
    KINDS: ClassVar = {
        "rank 6": PivotedCholesky(6),
        "1 neighbour": Neighbours(1),
        "3 neighbours": Neighbours(3),
        "all neighbours": Neighbours(11),
        "rank 4 and 3 neighbours": LowRankAndNeighbours(4, 3),
        "rank 4 and 1 neighbour": LowRankAndNeighbours(4, 1),
        "chosen": Automatic(),
    }
    kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
    noises = pytest.mark.parametrize("per_point", [False, True], ids=["one noise", "noise of each point"])
    ages = pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
    controls = pytest.mark.parametrize(
        "control",
        [
            pytest.param(None, marks=pytest.mark.slow, id="no control variate"),
            pytest.param((0.3, 0.8), id="control variate"),
        ],
    )

    @kinds
    @noises
    @ages
    @controls
    def test_has_the_exact_expectation(self, kind, per_point, stale, control):
        self.check(kind, per_point, stale, control)

    @pytest.mark.parametrize("parts", [(0.0, 1.0), (1.0, 0.0), (-2.0, 5.0)], ids=str)
    @pytest.mark.parametrize("kind", [Neighbours(3), LowRankAndNeighbours(4, 3)], ids=["neighbours", "both"])
    def test_at_any_coefficient(self, kind, parts):
        self.check(kind, True, True, parts)

    @noises
    @controls
    @pytest.mark.parametrize("count", [1, 3, 8])
    def test_with_random_neighbours(self, count, per_point, control, monkeypatch):
        """Any earlier points will do, near or far: that is a matter of how long runs are."""

        def anybody(system, wanted, generator):
            place = torch.randperm(system.size, generator=generator)
            drawn = torch.rand(system.size, system.size, generator=generator)
            drawn[place[:, None] <= place] = 2.0  # itself and later ones
            value, index = drawn.sort(dim=1)
            return torch.where(value < 2.0, index, -1)[:, :wanted]

        monkeypatch.setattr(build, "neighbours_of", anybody)
        self.check(Neighbours(count), per_point, True, control)

    def is_exact(self, kind):
        return kind in (Neighbours(self.n - 1), Automatic())

    def check(self, kind, per_point, stale, control):
        batch, parameters = make_batch(n=self.n, per_point=per_point)
        objective = primed(kind, stale, stale, control is not None, self.n, per_point, control)
        mean, truncations = mean_over_pairs(objective, self.RULE, batch, parameters)
        assert truncations > 1 or (self.is_exact(kind) and not stale)
        assert (objective._policy.control is not None) == (stale and control is not None)
        assert_equal(mean, exact(batch, parameters))

    @kinds
    @noises
    @ages
    def test_plain_cg_fails_the_same_check(self, kind, per_point, stale):
        """Two iterations with the same P: the test has power. A fresh P = A is exact after one."""
        batch, parameters = make_batch(n=self.n, per_point=per_point)
        objective = primed(kind, stale, stale, False, self.n, per_point)
        value, _ = estimate(objective, Truncation.plain(2), batch, parameters)
        error = (value - exact(batch, parameters)).abs() / exact(batch, parameters).abs().clamp_min(1.0)
        if self.is_exact(kind) and not stale:
            assert float(error.max()) < 1e-10
        else:
            assert float(error.max()) > 1e-6
