"""How an optimiser's loop ended."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from rtgp.training._result import FitStatus


class NoWayOnError(Exception):
    """Nothing is left to change after an obstacle; the parameters are those of the last good step."""


@dataclass(frozen=True)
class Outcome:
    status: FitStatus
    steps: int
    message: str
    state: dict[str, Any]  # of the optimiser, for the checkpoint
    final: bool = True  # whether the same run would end here again; if not, a later one may go on from its checkpoint


def combined(estimates: list[tuple[float, float]]) -> tuple[float, float] | None:
    """The mean of independent estimates (value, standard error), and its standard error; None without estimates.

    The errors that the estimates state come from many probes, and are used where they are known. Where they are not (0
    or NaN), the scatter of the values is. The scatter of a few is itself uncertain, so the error is made larger by the
    standard deviation of Student's distribution.
    """
    count = len(estimates)
    if count == 0:
        return None
    mean = statistics.fmean(value for value, _ in estimates)
    errors = [error for _, error in estimates]
    if all(error > 0.0 for error in errors):
        return mean, math.sqrt(sum(error * error for error in errors)) / count
    if count < 4:
        return mean, math.nan if count > 1 else 0.0
    scatter = statistics.stdev([value for value, _ in estimates]) / math.sqrt(count)
    return mean, scatter * math.sqrt((count - 1) / (count - 3))
