"""Any truncation law, given by its survival probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from rtgp.truncation._checks import check_integer, reject
from rtgp.truncation._distributions import TruncationDistribution, as_index
from rtgp.truncation._moments import check_reached, check_wanted

_TINY = 1e-300  # a survival that underflows would end the support before `maximum`


@dataclass(frozen=True)
class Tabulated(TruncationDistribution):
    """Any law, given by its survival probabilities; the support ends with the table.

    Parameters
    ----------
    survival : sequence of float
        P(J >= j) = survival[j - 1], with 1 = S_1 >= S_2 >= ... > 0.

    Examples
    --------
    >>> from rtgp.truncation import Tabulated
    >>> Tabulated([1.0, 0.5, 0.25]).mean
    1.75
    """

    survival: Sequence[float]
    maximum: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table = tuple(float(s) for s in self.survival)
        falling = all(a >= b for a, b in pairwise(table))
        if not table or table[0] != 1.0 or not falling or not table[-1] > 0:
            shown = str(table) if len(table) <= 6 else f"{table[:6]} ... ({len(table)} values)"
            expected = "a sequence of survival probabilities that starts at 1, never rises and stays positive"
            reject("Tabulated", "survival", expected, shown)
        object.__setattr__(self, "survival", table)
        object.__setattr__(self, "maximum", len(table))

    @classmethod
    def from_moments(cls, mean: float, std: float, maximum: int) -> Tabulated:
        """The law of largest entropy with given moments: P(j) proportional to exp(a j + b j^2).

        Parameters
        ----------
        mean : float
            The wanted mean.
        std : float
            The wanted standard deviation.
        maximum : int
            The support is 1, ..., maximum.

        Returns
        -------
        Tabulated
            The distribution.
        """
        check_wanted("Tabulated", mean, std)
        check_integer("Tabulated", "maximum", maximum)
        log_pmf = _largest_entropy(mean, std, maximum)
        tails = torch.logcumsumexp(log_pmf.flip(0), dim=0).flip(0)
        survival = torch.cummin((tails - tails[0]).exp(), dim=0).values.clamp(min=_TINY)
        member = cls(survival.tolist())
        check_reached(member, mean, std)
        return member

    @cached_property
    def _table(self) -> Tensor:
        """S_1, ..., S_maximum, 0, 0. (maximum + 2,)"""
        return torch.tensor([*self.survival, 0.0, 0.0], dtype=torch.float64)

    @property
    def first(self) -> int:
        return int((self._table == 1).sum())

    @property
    def mean(self) -> float:
        return self._summed_moments()[0]

    @property
    def std(self) -> float:
        return self._summed_moments()[1]

    def _rank(self, j: int | Tensor) -> Tensor:
        return as_index(j).clamp(min=1, max=self.maximum + 1).long() - 1

    def log_pmf(self, j: int | Tensor) -> Tensor:
        rank = self._rank(j)
        return (self._table[rank] - self._table[rank + 1]).log().masked_fill(as_index(j) < 1, -math.inf)

    def log_survival(self, j: int | Tensor) -> Tensor:
        return self._table[self._rank(j)].log()


def _largest_entropy(mean: float, std: float, maximum: int) -> Tensor:
    """log P(j) = a x + b x^2 + const, x = (j - mean) / std, such that E[x] = 0 and E[x^2] = 1. (maximum,)

    (a, b) minimise the convex dual log sum exp(a x + b x^2) - b; Newton's method with step halving.
    """
    x = (torch.arange(1, maximum + 1, dtype=torch.float64) - mean) / std
    features = torch.stack([x, x**2])  # (2, maximum)
    target = torch.tensor([0.0, 1.0], dtype=torch.float64)
    ridge = 1e-14 * torch.eye(2, dtype=torch.float64)  # moments out of reach: the minimum lies at infinity

    def dual(parameters: Tensor) -> Tensor:
        return torch.logsumexp(parameters @ features, dim=0) - parameters @ target

    parameters = torch.tensor([0.0, -0.5], dtype=torch.float64)
    for _ in range(100):
        probability = torch.softmax(parameters @ features, dim=0)
        gradient = features @ probability - target
        centred = features - (features @ probability).unsqueeze(-1)
        direction = torch.linalg.solve((centred * probability) @ centred.T + ridge, gradient)
        gain = float(gradient @ direction)  # twice what a full step wins on the quadratic model
        if gain < 1e-26:
            break
        step, before = 1.0, dual(parameters)
        while step > 1e-6 and bool(dual(parameters - step * direction) > before):
            step /= 2
        if step <= 1e-6:  # no descent left above rounding
            break
        parameters = parameters - step * direction
    return torch.log_softmax(parameters @ features, dim=0)
