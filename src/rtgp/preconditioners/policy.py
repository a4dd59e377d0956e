"""Which preconditioner a training run holds: of what shape, and when it is made anew.

Everything is decided from the hyperparameters, from runs that are over and from trials whose probes are thrown away,
never from the draws of the run to come: a preconditioner that does not depend on these leaves the estimate unbiased.

Shape. A low rank suits smooth functions in noise; neighbours suit rough kernels, short lengthscales and little noise;
both together suit what is hard for either. Which it is changes during a training. So candidates are tried, at the start
and again after the hyperparameters have moved far, and the cheapest step wins: predicted iterations times what one
costs, and the making of the preconditioner once in so many calls.

Rank. A rank of k makes a run of J(k) iterations. J falls like the root of the k-th eigenvalue, the largest that a
factor of rank k leaves; how that falls with k is seen when a factor is made.

Age. A preconditioner that the hyperparameters have left behind makes longer runs, and noisier gradients: with little
noise in the data the variance may grow by factors of 100 while the run is not twice as long. How it grows with the
distance is learnt where the noise is measured, and a gradient's price is its cost times its variance.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rtgp.distributed import Group
from rtgp.operators.choose import free_memory
from rtgp.preconditioners.build import FLATTEST, STEEPEST, Built, build
from rtgp.preconditioners.choice import Choice, ChoiceSettings, Decision, Loser, distance
from rtgp.preconditioners.nearest import place_of
from rtgp.preconditioners.neighbour_control import NeighbourControl
from rtgp.preconditioners.nystroem_control import COEFFICIENT, NystroemControl
from rtgp.preconditioners.pivoted_cholesky import PivotedCholesky
from rtgp.preconditioners.protocol import Control, Identity, Preconditioner
from rtgp.preconditioners.saved import preconditioner_from_state
from rtgp.preconditioners.settings import Automatic, LowRankAndNeighbours, Neighbours, PreconditionerSettings
from rtgp.preconditioners.shape import Costs, Shape
from rtgp.preconditioners.sparse_inverse import check_earlier
from rtgp.preconditioners.trial import Trial, TrialSettings, tried
from rtgp.preconditioners.wear import distortion_between, imbalance, sample_of
from rtgp.solvers import WhitenedSystem
from rtgp.state import State, saved_count, saved_flag, saved_scalar, saved_tensor

_log = logging.getLogger("rtgp")


@dataclass(frozen=True)
class PolicySettings:
    """The constants of the policy.

    largest_change: factor by which the rank changes from one preconditioner to the next, at the most.
    rank_share: the rank is at most n over this.
    memory_share: part of the free memory that a low-rank factor may take.
    bytes_per_entry: for each row and column of a low-rank factor: the factor, Q in both precisions and layouts, and
    what is passing.
    steepest: power of the distortion in the noise that is believed.
    calls_per_build: at least so many; the first ones are worn out by the first, large steps.
    memory: part of what was learnt of the noise that is kept from one call to the next.
    doubt: what "the noise does not grow" counts for, in squares of the logarithm of a distortion.
    pattern_moved: change of the logarithm of a lengthscale after which neighbours are searched for again.
    choice: of the shape.
    """

    largest_change: float = 2.0
    rank_share: int = 2
    memory_share: float = 0.4
    bytes_per_entry: int = 48
    steepest: float = STEEPEST
    calls_per_build: float = 3.0
    memory: float = 0.8
    doubt: float = 0.25
    pattern_moved: float = 0.2
    choice: ChoiceSettings = field(default_factory=ChoiceSettings)
    costs: Costs = field(default_factory=Costs)
    trial: TrialSettings = field(default_factory=TrialSettings)


_DEFAULT = PolicySettings()


def iteration_cost(n: int, rank: int, columns: int) -> float:
    """Operations of one iteration with a low rank: the product with K, and four with the thin factor."""
    return _DEFAULT.costs.iteration(n, Shape(rank), columns, torch.device("cpu"))


def build_cost(n: int, rank: int) -> float:
    """Operations, those in float64 counted twice: the factor, and its orthonormal columns by Gram matrices."""
    return _DEFAULT.costs.build(n, Shape(rank), torch.device("cpu"))


@dataclass(frozen=True)
class Held:
    """The preconditioner in hand, and what runs with it have shown."""

    preconditioner: Preconditioner
    shape: Shape
    control: Control | None
    decay: float
    pattern: Tensor | None
    sample: Tensor  # (m, m): the kernel on the sample when it was made, in units of the noise; empty if not watched
    whole: float  # of how much of a Nystroem control to take, before anything is known
    spread: float  # mean |B e - e|^2 / n of the last run, or of the trial
    place: Tensor  # (d + 1,): logarithms of the signal and of the scaled inputs' spread, when the pattern was found
    calls: int = 0
    fresh: int = 0  # iterations of the first run with it
    wasted: int = 0  # iterations beyond that, over all runs with it
    first_noise: float = 0.0  # of the first run with it; 0 where it was not measured
    distortion: float = 1.0  # of the kernel since it was made

    @property
    def guess(self) -> float:
        """Of how much of the control variate to take, before anything is known."""
        if isinstance(self.control, NeighbourControl):
            return 1.0 / (1.0 + self.spread)
        return self.whole


class Policy:
    """Hands out the preconditioner for each call.

    wanted: settings of one kind, `Automatic()`, or None. refresh: calls after which it is made anew; None: when that
    pays. columns: right-hand sides of a run. control: whether to make a control variate with it.
    """

    def __init__(
        self,
        wanted: PreconditionerSettings | None,
        refresh: int | None,
        columns: int,
        control: bool = False,
        settings: PolicySettings = _DEFAULT,
    ) -> None:
        self.wanted, self.refresh, self.columns, self._with_control = wanted, refresh, columns, control
        self.settings = settings
        self._short = False  # whether a lack of memory was told of
        self.reset()

    def reset(self) -> None:
        self._held: Held | None = None
        self.decision: Decision | None = None
        self._builds, self._calls = 0, 0
        self._growth = (0.0, 0.0)  # of the noise with the distortion, logarithms of both: moments of second order
        self._begin: int | None = None  # after `forget`, and used up by the same call: the rank of the next one

    def forget(self) -> None:
        """Make the preconditioner anew in the next call, of the rank it has: the system comes in another precision."""
        if self._held is not None:
            self._begin = self._held.preconditioner.rank
            self._held = None

    def enlarge(self) -> str | None:
        """Make the preconditioner anew in the next call, of twice the rank, if the rank is ours to choose and may still
        grow: what was done, in words."""
        free = isinstance(self.wanted, Automatic) or (
            isinstance(self.wanted, PivotedCholesky) and self.wanted.rank is None
        )
        if not free or self._held is None:
            return None
        rank, most = self._held.preconditioner.rank, self._held.preconditioner.size // self.settings.rank_share
        short = self._begin is not None and rank < self._begin  # memory, or the kernel's own rank, allowed no more
        if short or not 0 < rank < most:
            return None
        self._begin, self._held = min(2 * rank, most), None
        return f"a preconditioner of rank {self._begin} in place of {rank}"

    def preconditioner(
        self,
        system: WhitenedSystem,
        generator: torch.Generator,
        keep: bool,
        once: bool = False,
        follow: bool = False,
    ) -> tuple[Preconditioner, bool]:
        """The one to use, and whether it was made for this call. keep: never make it anew. once: no call is to come.
        follow: nothing is decided or drawn; neighbours keep their pattern, and values follow the hyperparameters."""
        if self.wanted is None:
            return Identity(system.size), False
        held = self._held
        if held is not None and follow:
            return self._followed(held, system, generator), False
        if held is not None and (keep or not self._worn_out(held, system)):
            return held.preconditioner, False
        place = place_of(system.operator.form, system.noise)
        pattern = held.pattern if held is not None and self._pattern_serves(held, place) else None
        pattern_place = held.place if held is not None and pattern is not None else place
        trial: Trial | None = None
        if isinstance(self.wanted, Automatic) and self._undecided(place):
            made, trial = self._decide(system, generator, pattern, place, once)
        else:
            made = self._build(self._shape(system), system, generator, pattern)
        if made.pattern is not pattern:
            pattern_place = place
        kept = made.preconditioner
        if held is not None and held.preconditioner.renew(kept):
            kept = held.preconditioner
            made = replace(made, preconditioner=kept)
        whole = 0.0
        if self._with_control and made.factor is not None:
            whole = NystroemControl.first_guess(system, 1.0 if made.shape.count else COEFFICIENT)
        self._held = Held(
            preconditioner=kept,
            shape=made.shape,
            control=made.control(system.dtype) if self._with_control else None,
            decay=made.decay,
            pattern=made.pattern,
            sample=sample_of(system) if self.refresh is None else torch.zeros(0, 0, dtype=torch.float64),
            whole=whole,
            spread=self._spread(trial),
            place=pattern_place,
        )
        self._builds += 1
        return kept, True

    def _followed(self, held: Held, system: WhitenedSystem, generator: torch.Generator) -> Preconditioner:
        """With a low rank it stays what it is: other values would take other pivots."""
        if held.shape.rank or held.pattern is None or held.pattern.shape[1] < held.shape.count:
            return held.preconditioner
        made = self._build(held.shape, system, generator, held.pattern)
        control = made.control(system.dtype) if self._with_control else None
        self._held = replace(held, preconditioner=made.preconditioner, control=control)
        return made.preconditioner

    @property
    def control(self) -> Control | None:
        """That of the preconditioner in hand."""
        return None if self._held is None else self._held.control

    @property
    def guess(self) -> float:
        """Of how much of that to take, before anything is known."""
        return 0.0 if self._held is None else self._held.guess

    @property
    def reason(self) -> str:
        """Why the preconditioner has its shape."""
        return "" if self.decision is None else self.decision.reason

    def used(self, iterations: int, noise: float = 0.0, spread: float | None = None) -> None:
        """A run with the preconditioner in hand took so many iterations, and the noise of its gradient cost so much (0:
        not known). spread: mean |B e - e|^2 / n of its probes."""
        self._calls += 1
        held = self._held
        if held is None:
            return
        fresh = held.fresh or iterations
        if self.decision is not None and held.calls == 0:  # a run that is longer than predicted is news once
            self.decision = replace(self.decision, iterations=max(self.decision.iterations, float(iterations)))
        held = replace(
            held,
            calls=held.calls + 1,
            fresh=fresh,
            wasted=max(0, held.wasted + iterations - fresh),
            spread=held.spread if spread is None or not math.isfinite(spread) else spread,
        )
        if 0.0 < noise < math.inf:
            if held.calls == 1:
                held = replace(held, first_noise=noise)
            elif held.first_noise > 0.0 and held.distortion < math.inf:
                x, y = math.log(held.distortion), math.log(noise) - math.log(held.first_noise)
                memory = self.settings.memory
                self._growth = (memory * self._growth[0] + x * y, memory * self._growth[1] + x * x)
        self._held = held

    @property
    def _calls_of_one(self) -> float:
        """Calls that one preconditioner serves."""
        return max(self.settings.calls_per_build, self._calls / max(1, self._builds))

    def _spread(self, trial: Trial | None) -> float:
        """By the trial, if there was one; by the last run otherwise."""
        if trial is not None:
            return trial.spread if math.isfinite(trial.spread) else 1.0 / torch.finfo(torch.float64).eps
        return 0.0 if self._held is None else self._held.spread

    def _build(self, shape: Shape, system: WhitenedSystem, generator: torch.Generator, pattern: Tensor | None) -> Built:
        pivoting = self.wanted if isinstance(self.wanted, PivotedCholesky) else None
        return build(shape, system, generator, pivoting, pattern)

    def _undecided(self, place: Tensor) -> bool:
        """Whether candidates are to be tried: at the start, after large moves, and where runs are longer than they
        were expected to be."""
        decision, held = self.decision, self._held
        if decision is None or decision.place.shape != place.shape:
            return True
        if held is not None and held.fresh > 2.0 * decision.iterations + self.settings.trial.iterations:
            self.decision = replace(decision, outdated=True)
            return True
        return distance(decision.place, place) > self.settings.choice.moved

    def _decide(
        self, system: WhitenedSystem, generator: torch.Generator, pattern: Tensor | None, place: Tensor, once: bool
    ) -> tuple[Built, Trial]:
        """Try candidates and take the one with the cheapest step."""
        settings, n, device = self.settings, system.size, system.device
        choice = Choice(
            n=n,
            columns=self.columns,
            device=device,
            place=place,
            calls=1.0 if once else self._calls_of_one,
            build=lambda shape, found: self._build(shape, system, generator, found),
            trial=lambda made: tried(made.preconditioner, system, generator, settings.trial),
            settings=settings.choice,
            costs=settings.costs,
        )
        rank = self._within_memory(self._rank(n, device), system)
        made, trial, self.decision = choice.made(rank, system.group.size == 1, pattern, self.decision)
        _log.info("Preconditioner: %s", self.decision.reason)
        return made, trial

    def _shape(self, system: WhitenedSystem) -> Shape:
        """Without a trial: as asked for, or as decided before."""
        n, wanted = system.size, self.wanted
        most = max(n - 1, 1)
        if isinstance(wanted, Neighbours):
            return Shape(0, min(wanted.count or self.settings.choice.counts[0], most))
        if isinstance(wanted, LowRankAndNeighbours):
            rank = wanted.rank or self._within_memory(PivotedCholesky().rank_for(n, self.columns), system)
            return Shape(min(rank, n), min(wanted.count or self.settings.choice.counts[1], most))
        count = 0
        if isinstance(wanted, Automatic):
            assert self.decision is not None
            count = min(self.decision.shape.count, most)
            if self.decision.shape.rank == 0:
                return self.decision.shape
        rank = self._rank(n, system.device)
        if isinstance(wanted, Automatic) or (isinstance(wanted, PivotedCholesky) and wanted.rank is None):
            rank = self._within_memory(rank, system)
        return Shape(rank, count)

    def _within_memory(self, rank: int, system: WhitenedSystem) -> int:
        most = largest_rank(system, self.settings)
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

    def _pattern_serves(self, held: Held, place: Tensor) -> bool:
        """Whether the nearest points are still about the nearest: lengthscales have hardly moved since."""
        if held.pattern is None or held.place.shape != place.shape:
            return False
        return float((held.place - place)[1:].abs().amax() if len(place) > 1 else 0.0) <= self.settings.pattern_moved

    def _worn_out(self, held: Held, system: WhitenedSystem) -> bool:
        if held.calls == 0:
            return False
        if self.refresh is not None:
            return held.calls >= self.refresh
        now = sample_of(system)
        if now.shape != held.sample.shape:  # from a checkpoint of a version that looked at more points
            return True
        distortion = max(1.0, distortion_between(held.sample, now), imbalance(held.preconditioner, system))
        held = self._held = replace(held, distortion=distortion)
        n, shape, settings = system.size, held.shape, self.settings
        run = held.fresh * math.sqrt(distortion)
        costs = settings.costs
        price = costs.build(n, shape, system.device) / costs.iteration(n, shape, self.columns, system.device)
        changed = distortion > 1.0 + 1e-9
        if changed and shape.count and price <= settings.choice.cheap * held.fresh:
            return True
        if held.wasted + run - held.fresh >= price:
            return True
        both, own = self._growth
        power = min(max(0.0, both) / (own + settings.doubt), settings.steepest)
        return math.pow(distortion, power) * run >= held.fresh + price

    def _rank(self, n: int, device: torch.device) -> int:
        settings, held = self.settings, self._held
        own = self.wanted if isinstance(self.wanted, PivotedCholesky) else PivotedCholesky()
        first = own.rank_for(n, self.columns)
        given = own.rank is not None or self.refresh is not None
        if given or held is None or held.calls == 0:
            return first if given else self._begin or first
        rank, most = held.preconditioner.rank, n // settings.rank_share
        if rank == 0:
            return first
        calls = self._calls_of_one

        def cost(k: int) -> float:
            run = max(1.0, held.fresh * math.pow(k / rank, -0.5 * held.decay))
            shape, costs = Shape(k, held.shape.count), settings.costs
            return run * costs.iteration(n, shape, self.columns, device) + costs.build(n, shape, device) / calls

        ratios = [math.pow(settings.largest_change, step / 4.0) for step in range(-4, 5)]
        # Not below half of the first: a better preconditioner also makes better probes, which no cost here knows of.
        candidates = {min(max(first // 2, round(rank * ratio)), max(most, first)) for ratio in ratios}
        return min(sorted(candidates), key=cost)

    def state_dict(self) -> State:
        state: State = {"builds": self._builds, "all_calls": self._calls}
        state["growth"] = torch.tensor(self._growth, dtype=torch.float64)
        if self.decision is not None:
            shape = torch.tensor([self.decision.shape.rank, self.decision.shape.count])
            state.update(decided_shape=shape, decided_place=self.decision.place)
            state["decided_iterations"] = torch.tensor(self.decision.iterations, dtype=torch.float64)
            state["decided_outdated"] = self.decision.outdated
            if self.decision.losers:
                rows = [[float(one.with_rank), one.count, one.ratio, *one.place] for one in self.decision.losers]
                state["decided_losers"] = torch.tensor(rows, dtype=torch.float64)
        if self._held is not None:
            held = self._held
            state.update(held.preconditioner.state_dict())
            state.update(sample=held.sample, calls=held.calls, fresh=held.fresh, wasted=held.wasted, place=held.place)
            for name in ("decay", "first_noise", "spread", "whole"):
                state[name] = torch.tensor(getattr(held, name), dtype=torch.float64)
            if held.pattern is not None:
                state["pattern"] = held.pattern
            if held.control is not None:
                state.update(held.control.state_dict())
        return state

    def load_state_dict(
        self, state: State, dtype: torch.dtype, group: Group | None = None, size: int | None = None
    ) -> None:
        """size: n, where it is known; a preconditioner of another is refused."""
        nothing = torch.zeros((), dtype=torch.float64)
        older = {"growth": torch.zeros(2, dtype=torch.float64), "first_noise": nothing, "spread": nothing}
        state = {**older, "place": torch.zeros(0, dtype=torch.float64), **state}
        state = {"whole": state.get("control_guess", torch.full_like(nothing, COEFFICIENT)), **state}
        self._calls = saved_count(state, "all_calls")
        both, own = saved_tensor(state, "growth", (2,)).tolist()
        if own < 0.0:
            raise ValueError(f"The second entry of 'growth', a sum of squares, must not be negative. Got {own}.")
        self._growth = (both, own)
        held = "preconditioner_q" in state or "neighbours_index" in state
        if held != ("sample" in state):
            raise ValueError("Expected a preconditioner and 'sample' together. Got one of them.")
        self._builds = saved_count(state, "builds", least=1 if held else 0)
        self._held, self.decision = None, None
        if "decided_shape" in state:
            shape = saved_tensor(state, "decided_shape", (2,), torch.int64, (0, 2**40))
            place = saved_tensor(state, "decided_place", (None,)).cpu()
            iterations = saved_scalar(state, "decided_iterations", (1.0, math.inf))
            decided = Shape(*map(int, shape.tolist()))
            losers = torch.zeros(0, 3 + len(place), dtype=torch.float64)
            if "decided_losers" in state:
                losers = saved_tensor(state, "decided_losers", (None, 3 + len(place))).cpu()
            if bool((losers[:, 1] < 0.0).any()) or bool((losers[:, 2] < 1.0).any()):
                raise ValueError("'decided_losers' must hold counts that are not negative, and ratios of 1 or more.")
            self.decision = Decision(
                decided,
                f"{decided}, as decided before the checkpoint",
                place,
                iterations,
                tuple(Loser(bool(row[0]), int(row[1]), float(row[2]), row[3:]) for row in losers),
                saved_flag(state, "decided_outdated") if "decided_outdated" in state else False,
            )
            there = len(saved_tensor(state, "place", (None,)))
            if held and there not in (0, len(place)):  # 0: of older versions
                raise ValueError(f"'place' must have as many numbers as 'decided_place', {len(place)}. Got {there}.")
        if held:
            preconditioner, control = preconditioner_from_state(state, dtype, group or Group.alone(), size)
            sample = saved_tensor(state, "sample", (None, None))
            if sample.shape[0] != sample.shape[1]:
                raise ValueError(f"'sample' must be square. Got shape {tuple(sample.shape)}.")
            pattern = None
            if "pattern" in state:
                n = preconditioner.size
                pattern = saved_tensor(state, "pattern", (n, None), torch.int64, (-1, n - 1))
                check_earlier(pattern, "pattern")
            self._held = Held(
                preconditioner=preconditioner,
                shape=Shape(preconditioner.rank, preconditioner.neighbours),
                control=control,
                decay=saved_scalar(state, "decay", (FLATTEST, STEEPEST)),
                pattern=pattern,
                sample=sample,
                whole=saved_scalar(state, "whole", (0.0, 1.0)),
                spread=saved_scalar(state, "spread", (0.0, math.inf)),
                place=saved_tensor(state, "place", (None,)).cpu(),
                calls=saved_count(state, "calls"),
                fresh=saved_count(state, "fresh"),
                wasted=saved_count(state, "wasted"),
                first_noise=saved_scalar(state, "first_noise", (0.0, math.inf)),
            )


def largest_rank(system: WhitenedSystem, settings: PolicySettings = _DEFAULT) -> int:
    """Beyond which a preconditioner would not fit into memory."""
    own = system.group.own(system.size)
    rows: int = max(1, own.stop - own.start)
    return max(1, int(settings.memory_share * free_memory(system.device)) // (settings.bytes_per_entry * rows))
