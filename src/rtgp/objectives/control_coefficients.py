"""How much of a control variate is taken, learnt from the scatter of runs that are over.

The kernel's part of it and the noise's have a coefficient each. With x the scatter of a gradient without it and y_i
that of its parts, they minimise what the noise costs, ||x - sum_i c_i y_i||^2 in the metric of the average information:
where P leaves much of A out, as with little noise on a rough kernel, almost all of the kernel's part serves and hardly
any of the noise's; where rounding fills the kernel's part, none of it does. More coefficients, one for each
hyperparameter, would spoil what cancels between them: a lengthscale and the outputscale may change K in nearly the
same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rtgp.state import saved_scalar, saved_tensor

_PRIOR = 0.1  # of a call: what the first guess counts for
_MEMORY = 0.8  # part of what was learnt that is kept from one call to the next
_STRIDE = 10.0  # beyond this factor a call's noise does not tell more of what is usual
_RIDGE = 1e-4  # of each coordinate's own information: directions in which there is none do not count without end
_SINGULAR = 1e-9  # for parts that are alike
_ROUNDING = 1e-6  # by which a saved correlation may exceed 1


class Coefficients:
    """By least squares over the calls. The older a call the less it counts, and the less the more its noise exceeds
    what is usual: one with a preconditioner that is no longer good may have 1,000 times the variance of others, and
    would teach for long what holds for it alone."""

    def __init__(self) -> None:
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
        own = self._gram.diagonal()
        scale = torch.where(own > 0.0, own, 1.0).rsqrt()
        correlation = self._gram * scale * scale[:, None] + torch.eye(2, dtype=torch.float64) * _SINGULAR
        found = scale * torch.linalg.solve(correlation, scale * self._both)
        return torch.where(own > 0.0, found, guess).clamp(0.0, 1.0)

    def learn(self, x: Tensor, y: Tensor, guess: float, noise: float) -> None:
        """From a run: x (p,) and y (2, p), float64, in coordinates in which squared lengths are what noise costs.
        noise: of what was left of x in this run."""
        if not 0.0 < noise < math.inf:
            return
        usual = self._usual or noise
        weight = 1.0 / max(noise, usual)
        gram, both = weight * y @ y.T, weight * y @ x
        if not bool(torch.isfinite(gram).all() and torch.isfinite(both).all()):
            return
        self._usual = usual * math.pow(min(max(noise / usual, 1.0 / _STRIDE), _STRIDE), 1.0 - _MEMORY)
        first = torch.where(self._gram.diagonal() == 0.0, _PRIOR * gram.diagonal(), 0.0)
        self._gram = _MEMORY * self._gram + gram + torch.diag(first)
        self._both = _MEMORY * self._both + both + guess * first


def by_cost(information: Tensor) -> Tensor:
    """W (p, p) such that ||W g||^2 is g^T information^-1 g, up to a ridge; coordinates without information are left
    out."""
    own = information.diagonal()
    scale = torch.where(own > 0.0, own, math.inf).rsqrt()
    eigenvalues, vectors = torch.linalg.eigh(information * scale * scale[:, None])
    found: Tensor = (vectors / (eigenvalues.clamp_min(0.0) + _RIDGE).sqrt()).T * scale
    return found
