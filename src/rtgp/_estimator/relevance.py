"""What each input contributes to the predictions: by how far they move when it alone is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtgp.errors import RTGPError


@dataclass(frozen=True)
class RelevanceSettings:
    """How relevance is measured. Chosen, not fitted.

    rows: that it is averaged over. least: of them, for however many inputs. predictions: in all, at most about so many.
    visible: part of the variance below which an input has no visible effect.
    """

    rows: int = 256
    least: int = 32
    predictions: int = 8192
    visible: float = 1e-3


DEFAULT = RelevanceSettings()
NO_EFFECT = "no visible effect"


def relevances(
    mean: Callable[[Tensor], Tensor],
    x: Tensor,
    noise: float,
    names: Sequence[str],
    seed: int,
    settings: RelevanceSettings = DEFAULT,
) -> dict[str, float]:
    """Name of an input -> its total effect (Sobol's index, by Jansen's estimator) as a part of the variance.

    That is half the mean square of m(x) - m(x with x_j of another row) over the variance of a new observation, where m
    is the predicted mean and rows are those of x (n, d). It is 0 for an input that predictions do not depend on. Inputs
    that act together count for each of them, so that the sum may exceed 1.
    """
    generator = torch.Generator().manual_seed(seed)
    count = max(settings.least, min(settings.rows, settings.predictions // (len(names) + 1)))
    order = torch.randperm(x.shape[0], generator=generator)[:count].to(x.device)
    here, there = x[order], x[order.roll(1)]
    with torch.no_grad():
        at = mean(here).double()
        total = float(_half_square(at - at.roll(1, -1))) + noise
        found = {}
        for j, name in enumerate(names):
            moved = here.clone()
            moved[:, j] = there[:, j]
            found[name] = float(_half_square(at - mean(moved).double())) / total if total > 0.0 else 0.0
    return found


def known_relevance(regressor: Any, asked: bool = True) -> dict[str, float]:
    """Its `relevance_`, empty where that cannot be computed: it must not cost anyone the rest.

    asked: whether to compute it, and not only to take what has been computed.
    """
    try:
        return dict((regressor.relevance_ if asked else regressor._relevance) or {})
    except RTGPError:
        return {}


def without_effect(name: str, relevance: Mapping[str, float], settings: RelevanceSettings = DEFAULT) -> bool:
    """Whether a hyperparameter is the lengthscale of an input that has no visible effect."""
    _, _, rest = name.rpartition("lengthscale[")
    return rest.endswith("]") and rest != name and relevance.get(rest[:-1], 1.0) < settings.visible


def _half_square(difference: Tensor) -> Tensor:
    return 0.5 * difference.square().mean()
