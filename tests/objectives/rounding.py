"""What rounding alone does to an evaluation of CG or RR-CG, measured: the bound for two that should be the same.

In float32 a run is followed for some tens of iterations, and its residuals are right to fewer digits the longer it is.
How far that carries into the gradient differs from call to call, from 1e-7 to 1e-3 of it, so no fixed bound is right.
Here the same call is made again from the same state with the data moved to neighbouring floating-point numbers: that
is the scatter of an algorithm that is backward stable. Another order of sums may differ by a few times as much.

The roulette of RR-CG compares a random number with a survival that follows the residual. Where rounding moves the
survival across it, the run ends elsewhere: another draw of the same estimator, further away than rounding. So does
another choice of pivots. Such pairs are not compared.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

import rtgp
from gp_models import Model
from rtgp._objectives import KrylovObjective
from rtgp._objectives.protocol import State

NEIGHBOURS = 8  # evaluations with moved data
# Times the largest deviation of the neighbours. False alarm: were the deviations Gaussian, one more of the same kind
# would be so large with a probability of 2e-6 in the worst case (all along one direction).
MULTIPLE = 5.0


@dataclass(frozen=True)
class Found:
    value: float
    gradient: Tensor  # float64, on the CPU
    ends: tuple[object, ...]  # truncations and pivots

    def deviation(self, other: Found) -> tuple[float, float]:
        return abs(self.value - other.value), float((self.gradient - other.gradient).norm())


def make_data(n: int, d: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def make_model(x: Tensor, y: Tensor, device: str = "cpu") -> Model:
    return Model(x, y, GaussianLikelihood()).to(device=device, dtype=x.dtype).train()


def neighbour(t: Tensor, generator: torch.Generator) -> Tensor:
    """Every number moved up or down to the next one, or left where it is."""
    way = torch.randint(-1, 2, t.shape, generator=generator)
    return torch.where(way == 0, t, torch.nextafter(t, torch.where(way > 0, math.inf, -math.inf).to(t)))


class Evaluator:
    """A model and its likelihood. The draws of a call are a function of the seed given with it alone."""

    def __init__(self, x: Tensor, y: Tensor, method: rtgp.RRCG, device: str = "cpu") -> None:
        self.model = make_model(x, y, device)
        self.mll = rtgp.MarginalLogLikelihood(self.model.likelihood, self.model, method, torch.Generator())
        (self.objective,) = [part for part in vars(self.mll).values() if isinstance(part, KrylovObjective)]

    def state(self) -> State:
        return copy.deepcopy(self.objective.state_dict())

    def call(self, noise: float, seed: int) -> Found:
        model, mll = self.model, self.mll
        model.likelihood.noise = noise
        model.zero_grad()
        mll._generator.manual_seed(seed)
        loss = -mll(model(*model.train_inputs), model.train_targets)
        loss.backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        pivots = self.objective.state_dict().get("control_pivots")
        chosen = () if pivots is None else tuple(sorted(pivots.tolist()))
        return Found(float(loss.detach()), gradient.double().cpu(), (mll.last.truncations, chosen))


def anew(x: Tensor, y: Tensor, method: rtgp.RRCG, state: State, noise: float, seed: int, device: str = "cpu") -> Found:
    """The call by an objective that has the state and nothing else: no system, no recording."""
    made = Evaluator(x, y, method, device)
    made.objective.load_state_dict(copy.deepcopy(state))
    return made.call(noise, seed)


@dataclass(frozen=True)
class Scatter:
    """The call from the same state, and what rounding does to it."""

    centre: Found
    value: float
    gradient: float

    @staticmethod
    def of(
        x: Tensor, y: Tensor, method: rtgp.RRCG, state: State, noise: float, seed: int, device: str = "cpu"
    ) -> Scatter | None:
        """None where hardly any neighbour ends where the call does."""
        centre = anew(x, y, method, state, noise, seed, device)
        generator = torch.Generator().manual_seed(seed)
        moved = [(neighbour(x, generator), neighbour(y, generator)) for _ in range(NEIGHBOURS)]
        near = [anew(*one, method, state, noise, seed, device) for one in moved]
        deviations = [one.deviation(centre) for one in near if one.ends == centre.ends]
        if len(deviations) < NEIGHBOURS // 2:
            return None
        values, gradients = zip(*deviations, strict=True)
        eps = torch.finfo(x.dtype).eps  # value and gradient are handed out in this precision
        return Scatter(
            centre, max(*values, eps * abs(centre.value)), max(*gradients, eps * float(centre.gradient.norm()))
        )

    def holds(self, found: Found) -> bool | None:
        """Whether it is the same up to rounding; None where it ended elsewhere and cannot be compared."""
        if found.ends != self.centre.ends:
            return None
        value, gradient = found.deviation(self.centre)
        return value <= MULTIPLE * self.value and gradient <= MULTIPLE * self.gradient
