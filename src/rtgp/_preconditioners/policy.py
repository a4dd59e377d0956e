"""Which preconditioner a training run holds: of what shape, and when it is rebuilt.

Everything is decided from the hyperparameters, from runs that are over and from trials whose probes are thrown away.
Nothing depends on the draws of the run to come, so the estimate stays unbiased.

Shape. A low rank suits smooth functions in noise; neighbours suit rough kernels, short lengthscales and little noise;
both together suit what is hard for either. Which it is changes during a training. So candidates are tried, at the start
and again after the hyperparameters have moved far, and the cheapest step wins: predicted iterations times what one
costs, and the making of the preconditioner once in so many calls.

Rank. A rank of k makes a run of J(k) iterations. J falls like the root of the k-th eigenvalue, the largest that a
factor of rank k leaves; how that falls with k is seen when a factor is made.

Age. A preconditioner that the hyperparameters have left behind makes longer runs and noisier gradients. With little
noise in the data the variance may grow by a factor of 100 while the run is not twice as long. How it grows with the
distance is learnt where the noise is measured. The price of a gradient is its cost times its variance.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rtgp._kernels.structured import is_structured
from rtgp._preconditioners.build import BuildSettings, Built, build
from rtgp._preconditioners.choose import Choice, Decision, Loser, distance
from rtgp._preconditioners.combined import LowRankAndNeighboursInverse
from rtgp._preconditioners.distortion import distortion_between, imbalance, sample_of
from rtgp._preconditioners.nearest import place_of
from rtgp._preconditioners.neighbour_control import NeighbourControl
from rtgp._preconditioners.nystroem_control import NystroemControl
from rtgp._preconditioners.pivoted_cholesky import PivotedCholesky
from rtgp._preconditioners.policy_settings import PolicySettings, largest_rank
from rtgp._preconditioners.protocol import Control, Identity, Preconditioner
from rtgp._preconditioners.saved import preconditioner_from_state
from rtgp._preconditioners.settings import Automatic, LowRankAndNeighbours, Neighbours, PreconditionerSettings
from rtgp._preconditioners.shape import Shape
from rtgp._preconditioners.sparse_inverse import SparseInverse, check_earlier
from rtgp._preconditioners.trial import Trial, tried
from rtgp._solvers import NoiseUnits
from rtgp._state import State, saved_count, saved_flag, saved_scalar, saved_tensor
from rtgp.distributed import Group

_log = logging.getLogger("rtgp")


_DEFAULT = PolicySettings()


@dataclass(frozen=True)
class Held:
    """The kept preconditioner, and what runs with it have shown."""

    preconditioner: Preconditioner
    shape: Shape
    control: Control | None
    decay: float
    pattern: Tensor | None
    sample: Tensor  # (m, m): the kernel on the sample when it was made, in units of the noise; empty if not watched
    whole: float  # how much of a Nystroem control to use, before anything is known
    spread: float  # mean |B e - e|^2 / n of the last run, or of the trial
    place: Tensor  # (d + 1,): logarithms of the signal and of the scaled inputs' spread, when the pattern was found
    pivots: tuple[Tensor, ...] = ()  # of the low rank, in blocks
    calls: int = 0
    fresh: int = 0  # iterations of the first run with it
    wasted: int = 0  # iterations beyond that, over all runs with it
    first_noise: float = 0.0  # of the first run with it; 0 where it was not measured
    distortion: float = 1.0  # of the kernel since it was made

    @property
    def guess(self) -> float:
        """How much of the control variate to use, before anything is known."""
        if isinstance(self.control, NeighbourControl):
            return 1.0 / (1.0 + self.spread)
        return self.whole


class Policy:
    """Hands out the preconditioner for each call.

    Parameters
    ----------
    wanted : PreconditionerSettings | None
        Settings of one kind, `Automatic()`, or None.
    refresh : int | None
        Calls after which it is rebuilt; None: when that pays.
    columns : int
        Right-hand sides of a run.
    control : bool
        Whether to make a control variate with it.
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
        self._short = False  # whether a lack of memory was reported
        self.reset()

    def reset(self) -> None:
        self._held: Held | None = None
        self.decision: Decision | None = None
        self._builds, self._calls = 0, 0
        self._growth = (0.0, 0.0)  # of the noise with the distortion, logarithms of both: moments of second order
        self._begin: int | None = None  # after `forget`, and used up by the same call: the rank of the next one

    def forget(self) -> None:
        """Rebuild the preconditioner in the next call, with its rank: the system then comes in another precision."""
        if self._held is not None:
            self._begin = self._held.preconditioner.rank
            self._held = None

    def enlarge(self) -> str | None:
        """Rebuild the preconditioner in the next call, of twice the rank.

        The policy must have the choice of the rank, which may still grow. What was done is returned, in words.
        """
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
        system: NoiseUnits,
        generator: torch.Generator,
        keep: bool,
        once: bool = False,
        follow: bool = False,
    ) -> tuple[Preconditioner, bool]:
        """The preconditioner to use, and whether it was made for this call.

        With `keep` it is never rebuilt. With `once` no further call comes. With `follow` nothing is decided or drawn:
        pivots and neighbours stay, and values follow the hyperparameters.
        """
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
            whole = NystroemControl.first_guess(system, made.shape.count > 0, self.settings.control)
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
            pivots=made.pivots,
        )
        self._builds += 1
        return kept, True

    def _followed(self, held: Held, system: NoiseUnits, generator: torch.Generator) -> Preconditioner:
        """The kept preconditioner with values at the present hyperparameters.

        Estimates by the same draws are then a smooth function of the hyperparameters. One without pivots, from a
        checkpoint of an older version, stays what it is.
        """
        pattern = _neighbours_in(held)
        if bool(held.shape.rank) != bool(held.pivots) or bool(held.shape.count) != (pattern is not None):
            return held.preconditioner
        exactly_these = replace(self.settings.build, candidates=1)
        made = self._build(held.shape, system, generator, pattern, held.pivots, exactly_these)
        if held.preconditioner.renew(made.preconditioner):
            made = replace(made, preconditioner=held.preconditioner)
        control = made.control(system.dtype) if self._with_control else None
        self._held = replace(held, preconditioner=made.preconditioner, control=control)
        return made.preconditioner

    @property
    def control(self) -> Control | None:
        """The control variate of the kept preconditioner."""
        return None if self._held is None else self._held.control

    @property
    def guess(self) -> float:
        """How much of it to use, before anything is known."""
        return 0.0 if self._held is None else self._held.guess

    @property
    def reason(self) -> str:
        """Why the preconditioner has its shape."""
        return "" if self.decision is None else self.decision.reason

    def used(self, iterations: int, noise: float = 0.0, spread: float | None = None) -> None:
        """Learn from a run with the kept preconditioner.

        `iterations` are those of the run. `noise` is what the noise of its gradient cost; 0 where it is unknown.
        `spread` is the mean of `|B e - e|^2 / n` over its probes.
        """
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
        """|B e - e|^2 / n, by the trial if there was one, or by the last run."""
        if trial is not None:
            return trial.spread if math.isfinite(trial.spread) else 1.0 / torch.finfo(torch.float64).eps
        return 0.0 if self._held is None else self._held.spread

    def _build(
        self,
        shape: Shape,
        system: NoiseUnits,
        generator: torch.Generator,
        pattern: Tensor | None,
        pivots: tuple[Tensor, ...] = (),
        settings: BuildSettings | None = None,
    ) -> Built:
        pivoting = self.wanted if isinstance(self.wanted, PivotedCholesky) else None
        return build(shape, system, generator, pivoting, pattern, settings or self.settings.build, pivots)

    def _undecided(self, place: Tensor) -> bool:
        """Whether candidates are to be tried: at the start, after large moves, and where runs are longer than
        expected.
        """
        decision, held = self.decision, self._held
        if decision is None or decision.place.shape != place.shape:
            return True
        if held is not None and held.fresh > 2.0 * decision.iterations + self.settings.trial.iterations:
            self.decision = replace(decision, outdated=True)
            return True
        return distance(decision.place, place) > self.settings.choice.moved

    def _decide(
        self, system: NoiseUnits, generator: torch.Generator, pattern: Tensor | None, place: Tensor, once: bool
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
        alone, entries = system.group.size == 1, not is_structured(system.operator.form)  # which cost a product each
        made, trial, self.decision = choice.made(rank, alone, pattern, self.decision, neighbours=entries)
        _log.info("Preconditioner: %s", self.decision.reason)
        return made, trial

    def _shape(self, system: NoiseUnits) -> Shape:
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

    def _within_memory(self, rank: int, system: NoiseUnits) -> int:
        most = largest_rank(system, self.settings)
        if most < rank // 2 and not self._short and self.settings.most_bytes is None:
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
        """Whether the nearest points are still about the nearest, because lengthscales have hardly moved since."""
        if held.pattern is None or held.place.shape != place.shape:
            return False
        return float((held.place - place)[1:].abs().amax() if len(place) > 1 else 0.0) <= self.settings.pattern_moved

    def _worn_out(self, held: Held, system: NoiseUnits) -> bool:
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
            if held.pivots:
                state["low_rank_pivots"] = torch.cat(held.pivots)
                state["low_rank_blocks"] = torch.tensor([len(block) for block in held.pivots])
            if held.control is not None:
                state.update(held.control.state_dict())
        return state

    def load_state_dict(
        self, state: State, dtype: torch.dtype, group: Group | None = None, size: int | None = None
    ) -> None:
        """Take up what was saved. `size` is n, where it is known; a preconditioner of another size is refused."""
        nothing = torch.zeros((), dtype=torch.float64)
        older = {"growth": torch.zeros(2, dtype=torch.float64), "first_noise": nothing, "spread": nothing}
        state = {**older, "place": torch.zeros(0, dtype=torch.float64), **state}
        state = {"whole": state.get("control_guess", torch.full_like(nothing, self.settings.control.low_rank)), **state}
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
            pattern, settings = None, self.settings.build
            if "pattern" in state:
                n = preconditioner.size
                pattern = saved_tensor(state, "pattern", (n, None), torch.int64, (-1, n - 1))
                check_earlier(pattern, "pattern")
            pivots: tuple[Tensor, ...] = ()
            if "low_rank_pivots" in state:
                drawn = saved_tensor(state, "low_rank_pivots", (None,), torch.int64, (0, preconditioner.size - 1))
                sizes = saved_tensor(state, "low_rank_blocks", (None,), torch.int64, (1, math.inf)).tolist()
                if sum(sizes) != len(drawn):
                    raise ValueError(f"'low_rank_blocks' must add up to {len(drawn)} pivots. Got {sum(sizes)}.")
                pivots = torch.split(drawn, sizes)
            self._held = Held(
                preconditioner=preconditioner,
                shape=Shape(preconditioner.rank, preconditioner.neighbours),
                control=control,
                decay=saved_scalar(state, "decay", (settings.flattest, settings.steepest)),
                pattern=pattern,
                sample=sample,
                whole=saved_scalar(state, "whole", (0.0, 1.0)),
                spread=saved_scalar(state, "spread", (0.0, math.inf)),
                place=saved_tensor(state, "place", (None,)).cpu(),
                pivots=pivots,
                calls=saved_count(state, "calls"),
                fresh=saved_count(state, "fresh"),
                wasted=saved_count(state, "wasted"),
                first_noise=saved_scalar(state, "first_noise", (0.0, math.inf)),
            )


def _neighbours_in(held: Held) -> Tensor | None:
    """(n, m): those that the kept preconditioner is made of, -1 for none."""
    made = held.preconditioner
    sparse = made.sparse if isinstance(made, LowRankAndNeighboursInverse) else made
    return sparse.earlier() if isinstance(sparse, SparseInverse) else None
