"""Which preconditioner a training run holds: of what rank, and when it is made anew.

Everything is decided from the hyperparameters and from runs that are over, never from the draws of the run to come: a
preconditioner that is a function of the past leaves the estimate unbiased.

A rank of k makes a run of J(k) iterations and costs the making of the preconditioner once in so many calls. J falls
like the root of the k-th eigenvalue, the largest that a factor of rank k leaves; how that falls with k is seen when a
factor is made.

One that the hyperparameters have left behind makes longer runs, and noisier gradients: with little noise in the data
the variance may grow by factors of 100 while the run is not twice as long. How it grows with the distance is learnt
where the noise is measured, and a gradient's price is its cost times its variance.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp.distributed import Group
from rtgp.objectives.control_variate import NystroemControl
from rtgp.objectives.protocol import State
from rtgp.operators.choose import free_memory
from rtgp.solvers import IdentityPreconditioner, LowRankPlusIdentity, PivotedCholesky, WhitenedSystem
from rtgp.state import saved_count, saved_scalar, saved_tensor

_log = logging.getLogger("rtgp")

_LARGEST_CHANGE = 2.0  # of the rank from one preconditioner to the next
_SHARE = 2  # the rank is at most n over this
_MEMORY_SHARE = 0.4  # of what is free, for the preconditioner
_BYTES = 48  # for each row and column of the factor: the factor, Q in both precisions and layouts, and what is passing
_FLATTEST = 0.5  # power of the rank in the eigenvalues that is believed, at the least
_STEEPEST = 16.0  # power that is believed: of the rank in the eigenvalues, of the distortion in the noise
_CALLS_PER_BUILD = 3.0  # at least: the first ones are worn out by the first, large steps
_MEMORY = 0.8  # part of what was learnt of the noise that is kept from one call to the next
_DOUBT = 0.25  # what "it does not grow" counts for, in squares of the logarithm of a distortion


def iteration_cost(n: int, rank: int, columns: int) -> float:
    """Operations of one iteration: the product with K, and the preconditioner's six with its factor."""
    return 2.0 * n * columns * (n + 6.0 * rank)


def build_cost(n: int, rank: int) -> float:
    """Operations, those in float64 counted twice: the factor, and its orthonormal columns by Gram matrices."""
    return 14.0 * n * rank**2


@dataclass
class _Held:
    preconditioner: LowRankPlusIdentity
    decay: float  # the eigenvalues of A fall like rank^-decay
    sample: Tensor  # (m, m): the kernel on the sample when it was made, in units of the noise; empty if not watched
    control: NystroemControl | None
    calls: int = 0
    fresh: int = 0  # iterations of the first run with it
    wasted: int = 0  # iterations beyond that, over all runs with it
    first_noise: float = 0.0  # of the first run with it; 0 where it was not measured
    distortion: float = 1.0  # of the kernel since it was made


class Upkeep:
    """Hands out the preconditioner for each call. refresh: calls after which it is made anew; None: when that pays.
    control: whether to make a control variate with it."""

    def __init__(
        self, settings: PivotedCholesky | None, refresh: int | None, columns: int, control: bool = False
    ) -> None:
        self.settings, self.refresh, self.columns, self._with_control = settings, refresh, columns, control
        self._held: _Held | None = None
        self._builds = 0
        self._calls = 0
        self._growth = (0.0, 0.0)  # of the noise with the distortion, logarithms of both: moments of second order
        self._short = False  # whether a lack of memory was told of
        self._begin: int | None = None  # after `forget`, and used up by the same call: the rank of the next one

    def reset(self) -> None:
        self._held, self._builds, self._calls, self._begin = None, 0, 0, None
        self._growth = (0.0, 0.0)

    def forget(self) -> None:
        """Make the preconditioner anew in the next call, of the rank it has: the system comes in another precision."""
        if self._held is not None:
            self._begin = self._held.preconditioner.rank
            self._held = None

    def enlarge(self) -> str | None:
        """Make the preconditioner anew in the next call, of twice the rank, if the rank is ours to choose and may still
        grow: what was done, in words."""
        if self.settings is None or self.settings.rank is not None or self._held is None:
            return None
        rank, most = self._held.preconditioner.rank, self._held.preconditioner.size // _SHARE
        short = self._begin is not None and rank < self._begin  # memory, or the kernel's own rank, allowed no more
        if short or not 0 < rank < most:
            return None
        self._begin, self._held = min(2 * rank, most), None
        return f"a preconditioner of rank {self._begin} in place of {rank}"

    def preconditioner(
        self, system: WhitenedSystem, generator: torch.Generator, keep: bool
    ) -> tuple[LowRankPlusIdentity | IdentityPreconditioner, bool]:
        """The one to use, and whether it was made for this call. keep: never make it anew."""
        if self.settings is None:
            return IdentityPreconditioner(), False
        held = self._held
        if held is not None and (keep or not self._worn_out(held, system)):
            return held.preconditioner, False
        rank = self._rank(system.size)
        if self.settings.rank is None:
            rank = self._within_memory(rank, system)
        course: list[tuple[int, float]] = []
        pivots: list[Tensor] = []
        factor = system.factor(self.settings, self.columns, generator, rank, course, pivots)
        made = LowRankPlusIdentity(factor, system.dtype, system.group, system.size)
        if held is not None and held.preconditioner.renew(made):
            made = held.preconditioner
        control = None
        if self._with_control and pivots:
            guess = NystroemControl.first_guess(system)
            control = NystroemControl.of(made, factor, torch.cat(pivots), system.dtype, guess)
        sample = _sample(system) if self.refresh is None else torch.zeros(0, 0, dtype=torch.float64)
        self._held = _Held(made, _decay(course), sample, control)
        self._builds += 1
        return self._held.preconditioner, True

    @property
    def control(self) -> NystroemControl | None:
        """That of the preconditioner in hand."""
        return None if self._held is None else self._held.control

    def used(self, iterations: int, noise: float = 0.0) -> None:
        """A run with the preconditioner in hand took so many iterations, and the noise of its gradient cost so much (0:
        not known)."""
        self._calls += 1
        held = self._held
        if held is None:
            return
        held.calls += 1
        held.fresh = held.fresh or iterations
        held.wasted = max(0, held.wasted + iterations - held.fresh)
        if not 0.0 < noise < math.inf:
            return
        if held.calls == 1:
            held.first_noise = noise
        elif held.first_noise > 0.0 and held.distortion < math.inf:
            x, y = math.log(held.distortion), math.log(noise) - math.log(held.first_noise)
            self._growth = (_MEMORY * self._growth[0] + x * y, _MEMORY * self._growth[1] + x * x)

    def _within_memory(self, rank: int, system: WhitenedSystem) -> int:
        most = largest_rank(system)
        if most < rank // 2 and not self._short:
            self._short = True
            _log.warning(
                "The memory left on %s is enough for a preconditioner of rank %d, where rank %d would pay: runs take "
                "more iterations and gradients have more noise. Free some memory, or take fewer points.",
                system.device,
                most,
                rank,
            )
        return min(rank, most)

    def _worn_out(self, held: _Held, system: WhitenedSystem) -> bool:
        if held.calls == 0:
            return False
        if self.refresh is not None:
            return held.calls >= self.refresh
        n, rank = held.preconditioner.size, held.preconditioner.rank
        now = _sample(system)
        if now.shape != held.sample.shape:  # from a checkpoint of a version that looked at more points
            return True
        held.distortion = max(1.0, _distortion(held.sample, now))
        run = held.fresh * math.sqrt(held.distortion)
        price = build_cost(n, rank) / iteration_cost(n, rank, self.columns)
        if held.wasted + run - held.fresh >= price:
            return True
        both, own = self._growth
        noise = math.pow(held.distortion, min(max(0.0, both) / (own + _DOUBT), _STEEPEST))
        return noise * run >= held.fresh + price

    def _rank(self, n: int) -> int:
        assert self.settings is not None
        first = self.settings.rank_for(n, self.columns)
        held = self._held
        given = self.settings.rank is not None or self.refresh is not None
        if given or held is None or held.calls == 0:
            return first if given else self._begin or first
        rank, most = held.preconditioner.rank, n // _SHARE
        if rank == 0:
            return first
        calls = max(_CALLS_PER_BUILD, self._calls / self._builds)

        def cost(k: int) -> float:
            run = max(1.0, held.fresh * math.pow(k / rank, -0.5 * held.decay))
            return run * iteration_cost(n, k, self.columns) + build_cost(n, k) / calls

        ratios = [math.pow(_LARGEST_CHANGE, step / 4.0) for step in range(-4, 5)]
        # Not below half of the first: a better preconditioner also makes better probes, which no cost here knows of.
        candidates = {min(max(first // 2, round(rank * ratio)), max(most, first)) for ratio in ratios}
        return min(sorted(candidates), key=cost)

    def state_dict(self) -> State:
        state: State = {"builds": self._builds, "all_calls": self._calls}
        state["growth"] = torch.tensor(self._growth, dtype=torch.float64)
        if self._held is not None:
            held = self._held
            state.update(held.preconditioner.state_dict())
            state.update(sample=held.sample, calls=held.calls, fresh=held.fresh, wasted=held.wasted)
            state["decay"] = torch.tensor(held.decay, dtype=torch.float64)
            state["first_noise"] = torch.tensor(held.first_noise, dtype=torch.float64)
            if held.control is not None:
                state.update(held.control.state_dict())
        return state

    def load_state_dict(
        self, state: State, dtype: torch.dtype, group: Group | None = None, size: int | None = None
    ) -> None:
        """size: n, where it is known; a preconditioner of another is refused."""
        nothing = torch.zeros((), dtype=torch.float64)
        state = {"growth": torch.zeros(2, dtype=torch.float64), "first_noise": nothing, **state}  # older versions
        self._calls = saved_count(state, "all_calls")
        both, own = saved_tensor(state, "growth", (2,)).tolist()
        if own < 0.0:
            raise ValueError(f"The second entry of 'growth', a sum of squares, must not be negative. Got {own}.")
        self._growth = (both, own)
        held = "preconditioner_q" in state
        if held != ("sample" in state):
            raise ValueError("Expected 'preconditioner_q' and 'sample' together. Got one of them.")
        self._builds = saved_count(state, "builds", least=1 if held else 0)
        self._held = None
        if held:
            preconditioner = LowRankPlusIdentity.from_state_dict(state, dtype, group or Group.alone(), size)
            sample = saved_tensor(state, "sample", (None, None))
            if sample.shape[0] != sample.shape[1]:
                raise ValueError(f"'sample' must be square. Got shape {tuple(sample.shape)}.")
            calls, fresh, wasted = (saved_count(state, name) for name in ("calls", "fresh", "wasted"))
            decay = saved_scalar(state, "decay", (_FLATTEST, _STEEPEST))
            noise = saved_scalar(state, "first_noise", (0.0, math.inf))
            control = None
            if "control_b" in state:
                control = NystroemControl.from_state_dict(preconditioner, state, dtype)
            self._held = _Held(preconditioner, decay, sample, control, calls, fresh, wasted, noise)


def largest_rank(system: WhitenedSystem) -> int:
    """Beyond which a preconditioner would not fit into memory."""
    own = system.group.own(system.size)
    rows: int = max(1, own.stop - own.start)
    return max(1, int(_MEMORY_SHARE * free_memory(system.device)) // (_BYTES * rows))


def _decay(course: list[tuple[int, float]]) -> float:
    """The slope of log(1 + eigenvalue) against log(rank), a line through the second half of the ranks."""
    points = [(math.log(k), math.log1p(eigenvalue)) for k, eigenvalue in course]
    points = [point for point in points if point[0] >= points[-1][0] - math.log(2.0)]
    if len(points) < 2:
        return 1.0
    x, y = torch.tensor(points, dtype=torch.float64).T
    x = x - x.mean()
    slope = -float((x * y).sum() / x.square().sum())
    return min(max(slope, _FLATTEST), _STEEPEST)


def _sample(system: WhitenedSystem) -> Tensor:
    """The kernel on some points, in units of the noise, scaled so that its spectrum resembles that on all of them."""
    index = system.some_points()
    return system.kernel_rows(index, index).cpu() * (system.size / len(index))


def _distortion(before: Tensor, after: Tensor) -> float:
    """The condition number of (before + I)^-1 (after + I)."""
    identity = torch.eye(before.shape[0], dtype=before.dtype)
    lower, info = torch.linalg.cholesky_ex(before + identity)
    if int(info) != 0:
        return math.inf
    half = torch.linalg.solve_triangular(lower, after + identity, upper=False)
    eigenvalues = torch.linalg.eigvalsh(torch.linalg.solve_triangular(lower, half.T, upper=False))
    least = float(eigenvalues[0])
    return math.inf if least <= 0.0 else float(eigenvalues[-1]) / least
