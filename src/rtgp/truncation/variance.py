"""How much an estimate by Russian roulette scatters, from the run itself."""

from __future__ import annotations

from torch import Tensor


def roulette_variance(increments: Tensor, inverse_survival: Tensor, weights: Tensor) -> Tensor:
    """The variance of sum_j 1{J >= j} / S_j Delta_j over J, from the terms of one run; (J,) each.

    sum_{j,k} Delta_j Delta_k (1 / S_min(j,k) - 1), without bias where the run that has these terms gives them `weights`
    of mean one. That sample of it may be negative where the increments change their sign.
    """
    excess = (inverse_survival - 1.0) * increments
    return (weights * increments * (2.0 * excess.cumsum(0) - excess)).sum()
