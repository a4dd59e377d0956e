"""The policy where the shape is its own to choose: what it takes, what it says, and what a trial must not touch."""

from __future__ import annotations

from functools import partial

import gpytorch
import pytest
import torch

import rtgp
import rtgp._objectives.krylov as krylov
from gp_models import make
from models import gradient
from rtgp._kernels import read_kernel
from rtgp._preconditioners import Automatic, LowRank, SparseInverse
from rtgp._preconditioners import policy as policy_module
from rtgp._preconditioners.combined import LowRankAndNeighboursInverse
from rtgp._preconditioners.policy import Policy
from rtgp._preconditioners.trial import Trial
from rtgp._solvers import NoiseUnits
from rtgp.operators import make_from_form

MATERN12 = partial(gpytorch.kernels.MaternKernel, nu=0.5)
KINDS = {
    "low rank": LowRank,
    "neighbours": SparseInverse,
    "both": LowRankAndNeighboursInverse,
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def model(n: int, d: int, kernel=MATERN12, lengthscale: float = 0.3, outputscale: float = 1.0, noise: float = 0.01):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(5 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    own = make(x, y, kernel=gpytorch.kernels.ScaleKernel(kernel()))
    own.kernel.base_kernel.lengthscale, own.kernel.outputscale = lengthscale, outputscale
    own.likelihood.noise = noise
    return own


def system(own) -> NoiseUnits:
    form = read_kernel(own.kernel, *own.train_inputs)
    return NoiseUnits(make_from_form(form), own.likelihood.noise.reshape(()))


def decided(own, columns: int = 12) -> Policy:
    policy = Policy(Automatic(), None, columns, control=True)
    policy.preconditioner(system(own), torch.Generator().manual_seed(0), keep=False)
    return policy


def only(kind: type):
    """A trial that finds no other kind of any use."""

    def tried(preconditioner, *_) -> Trial:
        return Trial(1e-9, 1.0, 0.1) if type(preconditioner) is kind else Trial(0.5, 500.0, 10.0)

    return tried


def test_a_rough_spatial_problem_takes_neighbours() -> None:
    policy = decided(model(1200, 2, noise=1e-3))
    assert policy.decision.shape.count > 0
    assert policy.decision.shape.rank == 0


def test_a_smooth_noisy_one_takes_the_low_rank() -> None:
    """Many points on a line, far closer than a lengthscale."""
    policy = decided(model(1500, 1, gpytorch.kernels.RBFKernel, lengthscale=0.5, noise=0.3))
    assert policy.decision.shape.rank > 0
    assert policy.decision.shape.count == 0


@pytest.mark.parametrize("turn", [0, 1])
def test_the_choice_follows_the_hyperparameters(turn: int) -> None:
    """Not the inputs' dimension, nor the kernel's name: the same points and kernel, with other hyperparameters."""
    rough = model(1000, 2, noise=1e-4)
    smooth = model(1000, 2, lengthscale=300.0, noise=1.0)
    policy = decided((rough, smooth)[turn])
    first = policy.decision.shape
    policy.used(10)
    policy.preconditioner(system((smooth, rough)[turn]), torch.Generator().manual_seed(1), keep=False)
    counts = [first.count, policy.decision.shape.count]
    assert (counts[turn] > 0, counts[1 - turn] > 0) == (True, False)


@kinds
def test_the_reason_names_the_shape(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "tried", only(kind))
    policy = decided(model(300, 2))
    shape = policy.decision.shape
    assert policy.reason.startswith(f"{shape} makes the cheapest step; iterations predicted by trials: ")
    assert f"{shape}: 1" in policy.reason
    assert ("rank" in str(shape), "neighbours" in str(shape)) == (kind is not SparseInverse, kind is not LowRank)
    again = Policy(Automatic(), None, 12, control=True)
    again.load_state_dict(policy.state_dict(), torch.float64)
    assert str(shape) in again.reason


@kinds
def test_a_state_taken_up_repeats_bit_for_bit(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls after it: gradients, values and what is decided, with moves that make the preconditioner anew and one that
    makes the policy try again."""
    monkeypatch.setattr(policy_module, "tried", only(kind))
    own, generator = model(300, 2), torch.Generator().manual_seed(0)

    def steps(mll, path):
        found = []
        for lengthscale in path:
            own.kernel.base_kernel.lengthscale = lengthscale
            slope, value = gradient(own, mll)
            found.append((slope.tolist(), value, mll.last.rebuilt, mll.last.rank, mll.last.neighbours))
        return found

    first = rtgp.MarginalLogLikelihood(own.likelihood, own, rtgp.RRCG(), generator)
    steps(first, (0.3, 0.3, 0.32))
    held = first._objective._policy._held
    assert type(held.preconditioner) is kind
    state, drawn = first._objective.state_dict(), generator.get_state()
    path = (0.32, 0.33, 0.5, 0.01, 0.01, 0.01)
    wanted = steps(first, path)
    second = rtgp.MarginalLogLikelihood(own.likelihood, own, rtgp.RRCG(), generator)
    generator.set_state(drawn)
    second._objective.load_state_dict(dict(state))
    assert type(second._objective._policy._held.preconditioner) is kind
    assert steps(second, path) == wanted
    if kind is not LowRankAndNeighboursInverse:  # which costs more than these moves are worth
        assert any(rebuilt for _, _, rebuilt, *_ in wanted)


@kinds
def test_a_saved_policy_is_the_same_policy(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "tried", only(kind))
    one = decided(model(200, 2))
    one.used(7, 1e-3, 0.4)
    two = Policy(Automatic(), None, 12, control=True)
    two.load_state_dict(one.state_dict(), torch.float64)
    saved, again = one.state_dict(), two.state_dict()
    assert saved.keys() == again.keys()
    for name, value in saved.items():
        assert torch.equal(again[name], value) if isinstance(value, torch.Tensor) else again[name] == value, name
    assert two.guess == one.guess
    assert type(two.control) is type(one.control) is not type(None)


def test_a_saved_pattern_whose_points_form_a_circle_is_refused() -> None:
    policy = Policy(rtgp.Neighbours(4), None, 12)
    policy.preconditioner(system(model(50, 2)), torch.Generator().manual_seed(0), keep=False)
    state = policy.state_dict()
    pattern = state["pattern"].clone()
    row = int(torch.nonzero(pattern[:, 0] >= 0)[0, 0])
    pattern[pattern[row, 0], 0] = row
    with pytest.raises(ValueError, match="'pattern' must name points that come before"):
        Policy(rtgp.Neighbours(4), None, 12).load_state_dict({**state, "pattern": pattern}, torch.float64)


class TestTrials:
    """Choosing P by the probes that are then used would be bias: a trial has a stream of its own."""

    @pytest.fixture
    def drawn(self, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
        """The whitened probes of every call."""
        found: list[torch.Tensor] = []
        real = krylov.draw_probes

        def recording(*args):
            probes = real(*args)
            found.append(probes.whitened.clone())
            return probes

        monkeypatch.setattr(krylov, "draw_probes", recording)
        return found

    def stream(self, method: rtgp.RRCG, drawn: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Probes of three calls, and the generator's state after them."""
        drawn.clear()
        own, generator = model(200, 2), torch.Generator().manual_seed(5)
        mll = rtgp.MarginalLogLikelihood(own.likelihood, own, method, generator)
        for lengthscale in (0.3, 0.31, 0.02):
            own.kernel.base_kernel.lengthscale = lengthscale
            gradient(own, mll)
        return list(drawn), generator.get_state()

    def test_probes_are_the_same_with_and_without(self, drawn, monkeypatch: pytest.MonkeyPatch) -> None:
        trials = []
        real = policy_module.tried

        def counted(*args):
            trials.append(args)
            return real(*args)

        monkeypatch.setattr(policy_module, "tried", counted)
        probes, state = self.stream(rtgp.RRCG(), drawn)
        assert len(trials) >= 2
        count = len(trials)
        for preconditioner in (rtgp.Neighbours(8), rtgp.PivotedCholesky(10), rtgp.LowRankAndNeighbours(10, 8)):
            others, other_state = self.stream(rtgp.RRCG(preconditioner=preconditioner), drawn)
            assert len(trials) == count
            assert len(others) == len(probes) == 3
            assert all(torch.equal(a, b) for a, b in zip(probes, others, strict=True))
            assert torch.equal(state, other_state)

    def test_a_trial_draws_from_another_generator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own, generator = model(150, 2), torch.Generator().manual_seed(5)
        seen = []
        real = policy_module.tried
        monkeypatch.setattr(policy_module, "tried", lambda *args: (seen.append(args[2]), real(*args))[1])
        gradient(own, rtgp.MarginalLogLikelihood(own.likelihood, own, rtgp.RRCG(), generator))
        assert seen
        assert all(other is not generator for other in seen)

    @pytest.mark.parametrize("lengthscale", [0.3, 0.33, 3.0], ids=["the same", "near", "far"])
    def test_the_probes_to_come_decide_nothing(self, lengthscale: float) -> None:
        """The numbers of a call's own generator change its probes, not its preconditioner, where no pivots or orders
        are drawn anew; where they are, its shape is the same."""
        own, generator = model(300, 2, noise=1e-3), torch.Generator().manual_seed(0)
        mll = rtgp.MarginalLogLikelihood(own.likelihood, own, rtgp.RRCG(), generator)
        for _ in range(2):
            gradient(own, mll)
        past = mll._objective.state_dict()
        own.kernel.base_kernel.lengthscale = lengthscale
        decisions, losses = set(), set()
        for seed in range(6):
            mll._objective.load_state_dict(past)
            generator.manual_seed(seed)
            gradient(own, mll)
            decisions.add((mll.last.rebuilt, mll.last.rank, mll.last.neighbours))
            losses.add(mll.last.log_det)
        assert len(decisions) == 1
        assert len(losses) == 6


def test_values_follow_where_draws_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern stays, nothing is drawn or decided, and the control variate is of the same factor."""
    monkeypatch.setattr(policy_module, "tried", only(SparseInverse))
    own = model(300, 2, noise=1e-3)
    policy = decided(own)
    policy.used(3)
    held, decision = policy._held, policy.decision
    assert held is not None
    own.kernel.base_kernel.lengthscale = 0.4
    there, generator = system(own), torch.Generator().manual_seed(5)
    state = generator.get_state()
    followed, rebuilt = policy.preconditioner(there, generator, keep=False, follow=True)
    assert not rebuilt
    assert torch.equal(generator.get_state(), state)
    assert policy.decision is decision
    fresh = SparseInverse.of(there.operator.form, there.noise, held.pattern[:, : held.shape.count], there.dtype)
    assert torch.equal(followed.index, held.preconditioner.index)
    assert torch.equal(followed.values, fresh.values)
    assert not torch.equal(followed.values, held.preconditioner.values)
    assert policy.control._preconditioner is followed
    kept, _ = policy.preconditioner(system(own), generator, keep=True)
    assert kept is followed


@kinds
def test_estimates_by_the_same_draws_are_smooth(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Held and complete, each kind of preconditioner follows the hyperparameters: the slope changes along a way as the
    exact one does. Truncated, or with new pivots and neighbours, it jumps."""
    monkeypatch.setattr(policy_module, "tried", only(kind))
    own = model(300, 2, noise=1e-2, lengthscale=0.3)
    generator = torch.Generator()
    mll = rtgp.MarginalLogLikelihood(own.likelihood, own, rtgp.RRCG(), generator)
    exact = rtgp.MarginalLogLikelihood(own.likelihood, own, "cholesky")
    raw, begin = own.kernel.base_kernel.raw_lengthscale, own.kernel.base_kernel.raw_lengthscale.detach().clone()

    def slope(way: float, **wanted: bool) -> float:
        with torch.no_grad():
            raw.copy_(begin + way)
        used = mll if wanted else exact
        generator.manual_seed(3)
        own.zero_grad()
        (-used.evaluate(own(*own.train_inputs), own.train_targets, **wanted).objective).backward()
        return float(raw.grad)

    slope(0.0, complete=True)
    assert mll.last.rank * (kind is SparseInverse) + mll.last.neighbours * (kind is LowRank) == 0

    def roughness(**wanted: bool) -> float:
        """What is left of second differences beside the exact ones."""
        ways = [0.01 * k for k in range(9)]
        found = torch.tensor([slope(way, **wanted) - slope(way) for way in ways], dtype=torch.float64)
        return float(found.diff(n=2).abs().max())

    smooth = roughness(hold=True, complete=True)
    assert smooth < 1e-6
    mll.reset()
    assert roughness(complete=False, hold=False) > 30.0 * smooth  # the test has power
