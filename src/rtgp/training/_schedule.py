"""Optimisers by name, and how their learning rate goes down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtgp.errors import SettingError

Factory = Callable[..., torch.optim.Optimizer]

NAMES = ("auto", "average-information", "adam", "lbfgs", "multistep")


@dataclass(frozen=True)
class ScheduleSettings:
    """How the step size of "adam" falls to zero. Chosen, not fitted.

    Attributes
    ----------
    decay_fraction : float
        The last part of the steps, in which the step size falls.
    shortest_decay : int
        Steps that it takes, at the least.
    """

    decay_fraction: float = 0.4
    shortest_decay: int = 20


DEFAULT = ScheduleSettings()


@dataclass
class Schedule:
    """The learning rate as a function of the step.

    "cosine" is constant, and then falls to zero on half a cosine, from the step `decay_from` on. That step comes
    earlier where the loss has stopped falling. "multistep" is divided by 10 at 50, 70 and 90% of the steps, as in the
    paper. "constant" is left alone.
    """

    kind: str  # "cosine", "multistep", "constant"
    learning_rate: float | None
    steps: int
    decay_from: int
    end: int
    settings: ScheduleSettings = DEFAULT

    @classmethod
    def of(cls, kind: str, learning_rate: float | None, steps: int, settings: ScheduleSettings = DEFAULT) -> Schedule:
        length = min(steps, max(settings.shortest_decay, round(settings.decay_fraction * steps)))
        return cls(kind, learning_rate, steps, steps - length if kind == "cosine" else steps, steps, settings)

    def rate(self, step: int) -> float | None:
        """For the given step, counted from 0; None leaves the optimiser's own."""
        if self.learning_rate is None or self.kind == "constant":
            return None
        if self.kind == "multistep":
            passed = sum(step >= round(fraction * self.steps) for fraction in (0.5, 0.7, 0.9))
            return self.learning_rate / 10.0**passed
        progress = max(0.0, (step - self.decay_from + 1) / (self.end - self.decay_from + 1))
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))

    def decay_now(self, step: int) -> None:
        """The loss has stopped falling: let the step size fall from here on, then end."""
        fraction = self.settings.decay_fraction
        length = max(self.settings.shortest_decay, round(fraction / (1 - fraction) * step))
        if step + length < self.end:
            self.decay_from, self.end = step, step + length

    def decaying(self, step: int) -> bool:
        return step >= self.decay_from


def default_steps(optimizer: str, n: int) -> int:
    if optimizer == "lbfgs":
        return 200
    if optimizer == "average-information":
        return 60
    if optimizer == "multistep":  # the paper's, by the size of the data
        return 1500 if n < 20_000 else 800 if n < 100_000 else 300
    return 150 if n < 20_000 else 100


def make_optimizer(
    optimizer: str | Factory | torch.optim.Optimizer, parameters: Iterable[Tensor], learning_rate: float | None
) -> tuple[torch.optim.Optimizer, str, float | None]:
    """The optimiser, the kind of its schedule and its learning rate."""
    parameters = list(parameters)
    if optimizer in ("adam", "multistep"):
        kind, default = ("cosine", 0.1) if optimizer == "adam" else ("multistep", 0.01)
        rate = default if learning_rate is None else learning_rate
        return torch.optim.Adam(parameters, lr=rate), kind, rate
    if isinstance(optimizer, torch.optim.Optimizer):
        if learning_rate is not None:
            raise SettingError(
                "The 'learning_rate' cannot be given with an optimiser that is made already: set it there."
            )
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not held & {id(p) for p in parameters}:
            raise SettingError(
                "The 'optimizer' given holds none of the model's trainable parameters: make it with "
                "model.parameters(), of the model that is given to fit."
            )
        return optimizer, "constant", None
    if callable(optimizer):
        settings: dict[str, Any] = {} if learning_rate is None else {"lr": learning_rate}
        made = optimizer(parameters, **settings)
        if not isinstance(made, torch.optim.Optimizer):
            raise SettingError(
                "The 'optimizer' function must return a torch.optim.Optimizer. Got "
                f"{type(made).__name__} instead: write lambda parameters, **kw: torch.optim.SGD(parameters, **kw)."
            )
        return made, "constant", None
    raise unknown_optimizer(optimizer)


def unknown_optimizer(optimizer: object) -> SettingError:
    return SettingError(
        f"The 'optimizer' parameter must be one of {', '.join(map(repr, NAMES))}, or a torch optimiser (a class, a "
        f"function that makes one, or one that is made). Got {optimizer!r:.100} instead."
    )
