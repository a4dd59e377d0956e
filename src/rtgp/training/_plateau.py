"""When has a noisy objective stopped falling? Two windows of steps, their means and standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Plateau:
    """Met when the fall of the mean loss from one window to the next is *surely* below a tolerance.

    The fall is estimated as (mean of the window before) - (mean of the last window), with the standard error that the
    scatter about a straight line within each window gives. The criterion is max(fall, 0) + 2 standard errors <
    tolerance. An objective too noisy for this to be known never meets it, so noise alone cannot end the training.

    Attributes
    ----------
    window : int
        Number of steps.
    tolerance : float
        Per point.
    sigmas : float
        Number of standard errors by which what is left to gain must be below the tolerance.
    """

    window: int
    tolerance: float
    sigmas: float = 2.0

    def measure(self, losses: list[float]) -> tuple[float, float] | None:
        """(fall, its standard error) from the last two windows; None where there are too few steps."""
        if len(losses) < 2 * self.window:
            return None
        last = torch.tensor(losses[-2 * self.window :], dtype=torch.float64).reshape(2, self.window)
        means = last.mean(1)
        time = torch.arange(self.window, dtype=torch.float64)
        time = time - time.mean()
        slopes = (last * time).sum(1) / time.square().sum()
        scatter = last - means[:, None] - slopes[:, None] * time
        variance = float(scatter.square().sum()) / (2 * (self.window - 2))  # two parameters fitted in each window
        return float(means[0] - means[1]), math.sqrt(2.0 * variance / self.window)

    def met(self, losses: list[float]) -> bool:
        found = self.measure(losses)
        return found is not None and max(found[0], 0.0) + self.sigmas * found[1] < self.tolerance

    def words(self, losses: list[float]) -> str:
        found = self.measure(losses)
        if found is None:
            return f"fewer than two windows of {self.window} steps were taken"
        return f"mean loss of the last {self.window} steps lower by {found[0]:.1e} +- {found[1]:.1e} than before"
