"""How much of a control variate is taken, learnt from the scatter of runs that are over.

The kernel's part of it and the noise's have a coefficient each. Let x be the scatter of a gradient without it, and y_i
that of its parts. The coefficients minimise what the noise costs, ||x - sum_i c_i y_i||^2 in the metric of the average
information. Where P leaves much of A out, as with little noise on a rough kernel, almost all of the kernel's part
serves and hardly any of the noise's. Where rounding fills the kernel's part, none of it does.

One coefficient for each hyperparameter would be worse: a lengthscale and the outputscale may change K in nearly the
same way, and what cancels between them would be lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtgp._state import saved_scalar, saved_tensor

_ROUNDING = 1e-6  # by which a saved correlation may exceed 1


@dataclass(frozen=True)
class CoefficientSettings:
    """How the coefficients are learnt. All numbers were chosen, and tried on kin40k with a Matern-3/2 kernel (n = 2500,
    `benchmarks/results/rough_gradient.csv` and `rough_training.csv`).

    Attributes
    ----------
    prior : float
        How much the first guess counts, in calls.
    memory : float
        Part of what was learnt that is kept from one call to the next.
    stride : float
        The largest factor by which one call changes what is usual.
    ridge : float
        Added to the metric, as a part of each coordinate's own information. Directions without information get a floor,
        or they would dominate.
    singular : float
        Added to the correlation of the two parts, which may be alike.
    fixed : tuple[float, float] | None
        Coefficients of the kernel's part and of the noise's that are taken as they are; nothing is then learnt. For
        ablations. Any numbers leave the gradient unbiased.
    """

    prior: float = 0.1
    memory: float = 0.8
    stride: float = 10.0
    ridge: float = 1e-4
    singular: float = 1e-9
    fixed: tuple[float, float] | None = None


DEFAULT = CoefficientSettings()


class Coefficients:
    """Least squares over the calls.

    The older a call, the less it counts. A call with more noise than usual counts less too: one with a preconditioner
    that is no longer good may have 1,000 times the variance of others, and what it teaches holds for that
    preconditioner alone.
    """

    def __init__(self, settings: CoefficientSettings = DEFAULT) -> None:
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        self._gram = torch.zeros(2, 2, dtype=torch.float64)  # of y and y
        self._both = torch.zeros(2, dtype=torch.float64)  # of y and x
        self._usual = 0.0  # noise of a call; 0 before the first

    def state_dict(self) -> dict[str, Tensor]:
        usual = torch.tensor(self._usual, dtype=torch.float64)
        return {"control_gram": self._gram, "control_both": self._both, "control_usual": usual}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.reset()
        if "control_gram" in state:  # not in checkpoints of older versions
            gram = saved_tensor(state, "control_gram", (2, 2)).cpu()
            # The moments of two numbers: what is learnt is a quotient of these, which need not exist otherwise.
            (first, one), (other, second) = gram.tolist()
            most = math.sqrt(max(0.0, first) * max(0.0, second))
            slack = _ROUNDING * most
            if min(first, second) < 0.0 or abs(one - other) > slack or abs(one) > most + slack:
                raise ValueError(f"'control_gram' must be symmetric and not negative. Got {gram.tolist()}.")
            self._gram, self._both = gram, saved_tensor(state, "control_both", (2,)).cpu()
            self._usual = saved_scalar(state, "control_usual", (0.0, math.inf))

    def values(self, guess: float) -> Tensor:
        """c (2,); the guess where nothing has been learnt."""
        if self.settings.fixed is not None:
            return torch.tensor(self.settings.fixed, dtype=torch.float64)
        own = self._gram.diagonal()
        scale = torch.where(own > 0.0, own, 1.0).rsqrt()
        correlation = self._gram * scale * scale[:, None] + torch.eye(2, dtype=torch.float64) * self.settings.singular
        found = scale * torch.linalg.solve(correlation, scale * self._both)
        return torch.where(own > 0.0, found, guess).clamp(0.0, 1.0)

    def learn(self, x: Tensor, y: Tensor, guess: float, noise: float) -> None:
        """Learn from a run: x (p,) and y (2, p), float64, in coordinates whose squared lengths are the cost of noise.

        `noise` is the cost of what was left of x in this run.
        """
        if self.settings.fixed is not None or not 0.0 < noise < math.inf:
            return
        usual = self._usual or noise
        weight = 1.0 / max(noise, usual)
        gram, both = weight * y @ y.T, weight * y @ x
        if not bool(torch.isfinite(gram).all() and torch.isfinite(both).all()):
            return
        memory, stride = self.settings.memory, self.settings.stride
        self._usual = usual * math.pow(min(max(noise / usual, 1.0 / stride), stride), 1.0 - memory)
        first = torch.where(self._gram.diagonal() == 0.0, self.settings.prior * gram.diagonal(), 0.0)
        self._gram = memory * self._gram + gram + torch.diag(first)
        self._both = memory * self._both + both + guess * first


def by_cost(information: Tensor, settings: CoefficientSettings = DEFAULT) -> Tensor:
    """W (p, p) such that `||W g||^2` is g^T information^-1 g, up to a ridge. Coordinates without information are left
    out.
    """
    own = information.diagonal()
    scale = torch.where(own > 0.0, own, math.inf).rsqrt()
    eigenvalues, vectors = torch.linalg.eigh(information * scale * scale[:, None])
    found: Tensor = (vectors / (eigenvalues.clamp_min(0.0) + settings.ridge).sqrt()).T * scale
    return found
