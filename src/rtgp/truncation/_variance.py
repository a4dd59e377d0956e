"""How much an estimate by Russian roulette scatters, from the run itself."""

from __future__ import annotations

from torch import Tensor


def roulette_variance(increments: Tensor, inverse_survival: Tensor, weights: Tensor) -> Tensor:
    """The variance of sum_j 1{J >= j} / S_j Delta_j over J, estimated from the terms of one run.

    It is sum_{j,k} Delta_j Delta_k (1 / S_min(j,k) - 1). The estimate is unbiased where the run that has these terms
    gives them weights of mean one. It may be negative where the increments change their sign.

    Parameters
    ----------
    increments : Tensor
        Delta_j, (J,).
    inverse_survival : Tensor
        1 / S_j, (J,).
    weights : Tensor
        The weights of the run, (J,).

    Returns
    -------
    Tensor
        The variance, a scalar.

    Examples
    --------
    >>> import torch
    >>> from rtgp.truncation import roulette_variance
    >>> increments, survival = torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.5])
    >>> roulette_variance(increments, 1 / survival, torch.ones(2))
    tensor(0.2500)
    """
    excess = (inverse_survival - 1.0) * increments
    return (weights * increments * (2.0 * excess.cumsum(0) - excess)).sum()
