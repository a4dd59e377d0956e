"""What to do next, from what a fit and its predictions show: one sentence for each thing that stands out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rtgp._report.calibration import coverage, rmse
from rtgp._report.content import Predictions


@dataclass(frozen=True)
class AdviceSettings:
    """level: probability of the intervals that are judged.
    middle: of the narrower ones that tell heavy tails, where the others are right.
    chance: standard errors that a coverage may be off by chance.
    useless: share of the target's spread that is left where the inputs say hardly anything.
    idle: change of the prediction, in standard deviations, below which an input hardly matters.
    likelihood_error: nats; a larger standard error blurs a comparison of models.
    """

    level: float = 0.9
    middle: float = 0.5
    chance: float = 3.0
    useless: float = 0.95
    idle: float = 0.01
    likelihood_error: float = 1.0


@dataclass(frozen=True)
class Facts:
    """What advice is given on."""

    converged: bool
    message: str  # why training ended
    biased: str  # name of a method whose likelihood is biased; "" for others
    likelihood_error: float
    predictions: Predictions | None
    relevance: Mapping[str, float]


def advice(facts: Facts, settings: AdviceSettings | None = None) -> list[str]:
    """Sentences, the most important first; one that says so where nothing stands out."""
    settings = settings or AdviceSettings()
    said = []
    if not facts.converged:
        said.append(f"Training has not converged ({facts.message}): give it more steps before you rely on the model.")
    if facts.biased:
        said.append(
            f"The likelihood by {facts.biased} is biased: `rtgp diagnose` measures by how much, and method='rr-cg' is "
            "without it."
        )
    said += _on_predictions(facts.predictions, settings)
    idle = [name for name, value in facts.relevance.items() if value < settings.idle]
    if idle:
        shown = ", ".join(idle[:6]) + (f" and {len(idle) - 6} more" if len(idle) > 6 else "")
        said.append(f"These inputs hardly change the prediction: {shown}. A fit without them is cheaper.")
    if facts.likelihood_error > settings.likelihood_error:
        said.append(
            f"The log likelihood is known to ± {facts.likelihood_error:.1f}: refine it before you compare models by it "
            "(gp.refine_log_marginal_likelihood(error=0.5))."
        )
    return said or ["Nothing stands out: the model is ready to predict."]


def _on_predictions(predictions: Predictions | None, settings: AdviceSettings) -> list[str]:
    if predictions is None:
        return ["No predictions were judged: hold rows out (rtgp fit --holdout 0.2) to see how far to trust them."]
    said = []
    spread = float(np.std(predictions.y))
    if spread > 0 and rmse(predictions) > settings.useless * spread:
        said.append("The inputs say hardly anything about the target: its mean predicts it as well.")
    (observed, off), (inside, uneven) = (_covered(predictions, level, settings) for level in _levels(settings))
    level = settings.level
    if off:
        wide = "wide" if observed > level else "narrow"
        said.append(
            f"The {level:.0%} intervals are too {wide} ({observed:.0%} of the {predictions.kind} targets are inside): "
            "try another kernel, such as matern32, or a transform of the target, such as its logarithm."
        )
    elif uneven and inside > settings.middle:
        said.append(
            f"A few errors are much larger than the others ({inside:.0%} of the {predictions.kind} targets in their "
            f"{settings.middle:.0%} intervals): look for outliers, or transform the target."
        )
    return said


def _levels(settings: AdviceSettings) -> tuple[float, float]:
    return settings.level, settings.middle


def _covered(predictions: Predictions, level: float, settings: AdviceSettings) -> tuple[float, bool]:
    """The share inside, and whether it is off by more than chance."""
    observed = coverage(predictions, level)
    return observed, abs(observed - level) > settings.chance * math.sqrt(level * (1 - level) / len(predictions))
