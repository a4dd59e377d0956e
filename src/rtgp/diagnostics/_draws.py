"""Gradient estimates at fixed hyperparameters, drawn again and again with known seeds.

Two estimators that are given the same seed see the same probes (common random numbers): what differs between them is
their truncation alone, and its bias is known far better than either gradient.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rtgp._methods import Method
from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives import EstimateStats, KrylovObjective, Objective, Truncation
from rtgp._precision import SILENT
from rtgp._preconditioners import PivotedCholesky
from rtgp.diagnostics._subject import Subject
from rtgp.errors import UnsupportedModelError
from rtgp.training import hyperparameters

_FOREVER = 2**62


@dataclass(frozen=True)
class Entry:
    """One hyperparameter."""

    name: str
    value: float
    logarithmic: bool  # whether gradients are with respect to its logarithm


class Units:
    """The hyperparameters of a model under the names people know, gradients in the logarithm of the positive ones."""

    def __init__(self, mll: MarginalLogLikelihood) -> None:
        labels = iter(hyperparameters(mll).items())
        self.entries: list[Entry] = []
        self.left_out: list[str] = []  # parameters with very many entries: the weights of a network
        self.places: dict[int, slice] = {}  # id of a parameter -> its entries
        self._parameters: list[Tensor] = []
        factors: list[Tensor] = []
        for name, parameter in mll.named_parameters():
            if not parameter.requires_grad:
                continue
            label, value = next(labels)
            if label.endswith(" (norm)"):
                self.left_out.append(name)
                continue
            factor, positive = _log_factor(mll, name, parameter)
            start = len(self.entries)
            self.entries.append(Entry(label, value, positive))
            for _ in range(1, parameter.numel()):
                self.entries.append(Entry(*next(labels), positive))
            self.places[id(parameter)] = slice(start, len(self.entries))
            self._parameters.append(parameter)
            factors.append(factor)
        if not self.entries:
            raise UnsupportedModelError(
                "Expected a model with hyperparameters to train. It has none"
                + (f" but {', '.join(self.left_out)}, too large to look at one by one." if self.left_out else ".")
            )
        self.factors = torch.cat(factors)  # d raw / d log value; 1 for the others

    def gradient(self) -> Tensor:
        """(p,) float64, from what backward() left."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        return torch.cat([part.reshape(-1).double().cpu() for part in found]) * self.factors


def _log_factor(root: torch.nn.Module, name: str, parameter: Tensor) -> tuple[Tensor, bool]:
    """d raw / d log value for a parameter that is positive, d raw / d value for any other; whether it is positive."""
    path, _, own = name.rpartition(".")
    owner: Any = root.get_submodule(path)
    constraint = owner.constraint_for_parameter_name(own) if isinstance(owner, gpytorch.Module) else None
    if constraint is None:
        return torch.ones(parameter.numel(), dtype=torch.float64), False
    positive = bool((constraint.lower_bound >= 0).all())
    with torch.enable_grad():
        raw = parameter.detach().double().clone().requires_grad_()
        value = constraint.transform(raw)
        (slope,) = torch.autograd.grad(value.sum(), raw)
    factor = (value.detach() if positive else torch.ones_like(slope)) / slope
    return factor.reshape(-1).cpu(), positive


@dataclass(frozen=True)
class Converged(Method):
    """The method with every series run to working precision: its probes, without its truncation."""

    method: Method
    tolerance: float | None = None
    preconditioner: PivotedCholesky | None = None  # another one, which the solutions do not depend on

    def make_objective(self, frozen: bool = False) -> Objective:
        objective = self.method.make_objective()
        assert isinstance(objective, KrylovObjective)
        settings = replace(objective.settings, truncation=Truncation.plain(None), tolerance=self.tolerance)
        if self.preconditioner is not None:
            settings = replace(settings, preconditioner=self.preconditioner, refresh=_FOREVER)
        return KrylovObjective(settings)


@dataclass(frozen=True)
class Sample:
    """Gradients of the negative log marginal likelihood (not divided by n), one row a draw."""

    gradients: Tensor  # (draws, p) float64
    stats: tuple[EstimateStats, ...]
    seconds: tuple[float, ...]

    def values(self, name: str) -> Tensor:
        """(draws,): log_det, quadratic or another figure of the estimates."""
        return torch.tensor([float(getattr(one, name)) for one in self.stats], dtype=torch.float64)

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)


class Estimator:
    """One method at the hyperparameters of a subject."""

    def __init__(self, subject: Subject, method: Method, keep: bool = False) -> None:
        """`keep` keeps what the method holds between calls, a preconditioner that the draws do not depend on."""
        self._subject, self._keep = subject, keep
        self._generator = torch.Generator()
        model = subject.model
        # Silent: the diagnosis says it itself.
        self._mll = MarginalLogLikelihood(model.likelihood, model, method, self._generator, _notices=SILENT)
        self.units = Units(self._mll)

    def sample(self, seeds: Sequence[int]) -> Sample:
        """One draw for each seed, each from nothing unless `keep`."""
        gradients, stats, seconds = [], [], []
        with self._mll:
            for seed in seeds:
                self._generator.manual_seed(seed)
                if not self._keep:
                    self._mll.reset()
                self._mll.zero_grad()
                began = time.perf_counter()
                loss = -self._mll(self._subject.model(self._subject.X), self._subject.y) * len(self._subject.y)
                loss.backward()
                gradients.append(self.units.gradient())  # on the CPU: all is done
                seconds.append(time.perf_counter() - began)
                assert self._mll.last is not None
                stats.append(self._mll.last)
        return Sample(torch.stack(gradients), tuple(stats), tuple(seconds))
