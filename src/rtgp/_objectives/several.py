"""Objectives of several systems: each has its own preconditioner, warm start and precision, and their estimates add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rtgp._objectives.protocol import Batch, EstimateRequest, EstimateStats, Objective
from rtgp._state import State

_PREFIX = "system"


@dataclass(frozen=True)
class SeveralEstimates:
    """Of as many systems as there are values; the rest is of their sum."""

    surrogates: Tensor  # (b,), with history
    values: Tensor  # (b,)
    stats: EstimateStats
    contrast: Tensor | None
    information: Tensor | None


def estimate_all(
    objectives: Sequence[Objective],
    batches: Sequence[Batch],
    generator: torch.Generator | None,
    request: EstimateRequest,
) -> SeveralEstimates:
    """An objective for each system; the random numbers of one follow those of the one before."""
    found = [own(batch, generator, request) for own, batch in zip(objectives, batches, strict=True)]
    return SeveralEstimates(
        torch.stack([one.surrogate for one in found]),
        torch.stack([one.value for one in found]),
        together([one.stats for one in found]),
        _sum([one.contrast for one in found]),
        _sum([one.information for one in found]),
    )


def joint_state(objectives: Sequence[Objective]) -> State:
    """What all hold between calls, for a checkpoint; that of one alone is its own."""
    state = dict(objectives[0].state_dict())
    for k, other in enumerate(objectives[1:], 1):
        state.update({f"{_PREFIX}{k}.{name}": value for name, value in other.state_dict().items()})
    return state


def separate_states(state: State) -> list[State]:
    """The states that `joint_state` has put together."""
    parts: dict[int, State] = {0: {}}
    for name, value in state.items():
        head, dot, rest = name.partition(".")
        number = head.removeprefix(_PREFIX)
        if dot and head != number and number.isdecimal():
            parts.setdefault(int(number), {})[rest] = value
        else:
            parts[0][name] = value
    if sorted(parts) != list(range(len(parts))):
        raise ValueError(f"the states of {len(parts)} systems must be numbered from 0. Got {sorted(parts)}.")
    return [parts[k] for k in range(len(parts))]


def together(stats: Sequence[EstimateStats]) -> EstimateStats:
    """Sums of what adds up, and the worst of the rest."""
    first = stats[0]
    if len(stats) == 1:
        return first
    return replace(
        first,
        log_det=sum(one.log_det for one in stats),
        quadratic=sum(one.quadratic for one in stats),
        condition=max(one.condition for one in stats),
        rounding=max(one.rounding for one in stats),
        iterations=max(one.iterations for one in stats),
        truncations=tuple(number for one in stats for number in one.truncations),
        residual=max(one.residual for one in stats),
        frozen=sum(one.frozen for one in stats),
        columns=sum(one.columns for one in stats),
        rank=max(one.rank for one in stats),
        neighbours=max(one.neighbours for one in stats),
        rebuilt=any(one.rebuilt for one in stats),
        value_error=math.sqrt(sum(one.value_error**2 for one in stats)),
        effective_dimension=sum(one.effective_dimension for one in stats),
        operations=sum(one.operations for one in stats),
    )


def _sum(found: Sequence[Tensor | None]) -> Tensor | None:
    known = [one for one in found if one is not None]
    return torch.stack(known).sum(0) if len(known) == len(found) else None
