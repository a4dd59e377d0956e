"""Exponentially decaying truncations, Eq. 14 (eqn:exp-decay-dist), and their geometric form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rtgp.truncation._checks import check_integer, check_number, reject
from rtgp.truncation._distributions import TruncationDistribution, as_index, check_range
from rtgp.truncation._moments import check_reached, check_wanted, find_root

_SLOWEST, _FASTEST = 1e-12, 50.0  # rates between which from_moments searches; e^-50 is a single step


@dataclass(frozen=True)
class ExponentialDecay(TruncationDistribution):
    """P(J) proportional to exp(-rate J) for J = minimum, ..., maximum (Eq. 14 of the paper).

    For an integer minimum that is Eq. 14 itself. In general J is the integer part of minimum + E, with E exponential of
    this rate (cut at maximum + 1). The family is then continuous, so that every mean and standard deviation in reach
    can be met.

    Parameters
    ----------
    rate : float
        The rate of decay.
    minimum : float
        Any real number of at least 1.
    maximum : int, optional
        The last index. By default there is no end.

    Examples
    --------
    >>> from rtgp.truncation import ExponentialDecay
    >>> round(ExponentialDecay(rate=0.05, minimum=80).mean, 1)
    99.5
    """

    rate: float
    minimum: float = 1
    maximum: int | None = None

    def __post_init__(self) -> None:
        check_number("ExponentialDecay", "rate", self.rate)
        check_number("ExponentialDecay", "minimum", self.minimum)
        if self.minimum < 1:
            reject("ExponentialDecay", "minimum", "a number of at least 1", self.minimum)
        check_range("ExponentialDecay", self.minimum, self.maximum)

    @classmethod
    def from_moments(cls, mean: float, std: float, maximum: int | None = None) -> ExponentialDecay:
        """The member with a given mean and standard deviation.

        Parameters
        ----------
        mean : float
            The wanted mean.
        std : float
            The wanted standard deviation.
        maximum : int, optional
            The last index. By default there is no end.

        Returns
        -------
        ExponentialDecay
            The distribution.

        Examples
        --------
        >>> from rtgp.truncation import ExponentialDecay
        >>> law = ExponentialDecay.from_moments(mean=50, std=10)
        >>> round(law.mean, 6), round(law.std, 6)
        (50.0, 10.0)
        """
        check_wanted("ExponentialDecay", mean, std)
        highest = mean + 1 if maximum is None else min(mean + 1, maximum)  # J >= floor(minimum): no need to look above

        def with_mean(rate: float) -> ExponentialDecay:
            return cls(rate, find_root(lambda minimum: cls(rate, minimum, maximum).mean - mean, 1, highest), maximum)

        # Below `slowest` even minimum = 1 would have too large a mean.
        slowest = find_root(lambda rate: cls(rate, 1, maximum).mean - mean, _SLOWEST, _FASTEST)
        member = with_mean(find_root(lambda rate: with_mean(rate).std - std, slowest, _FASTEST))
        check_reached(member, mean, std)
        return member

    @property
    def first(self) -> int:
        return math.floor(self.minimum)

    @property
    def mean(self) -> float:
        return self._moments[0]

    @property
    def std(self) -> float:
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[float, float]:
        if self.maximum is not None:
            return self._summed_moments()
        # X = J - first is 0 with probability 1 - q, else 1 + (geometric with ratio r).
        r, one_minus_r = math.exp(-self.rate), -math.expm1(-self.rate)
        q = math.exp(-self.rate * (self.first + 1 - self.minimum))
        return self.first + q / one_minus_r, math.sqrt(q * (1 + r - q)) / one_minus_r

    @property
    def _log_total(self) -> Tensor:
        """log P(E < length) of the uncut exponential E, where length = maximum + 1 - minimum."""
        return _log1mexp(torch.tensor(self.rate * self._length, dtype=torch.float64))

    @property
    def _length(self) -> float:
        return math.inf if self.maximum is None else self.maximum + 1 - self.minimum

    def log_pmf(self, j: int | Tensor) -> Tensor:
        start = (as_index(j) - self.minimum).clamp(min=0, max=self._length)  # J = j: start <= E < end
        end = (as_index(j) + 1 - self.minimum).clamp(min=0, max=self._length)
        return -self.rate * start + _log1mexp(self.rate * (end - start)) - self._log_total

    def log_survival(self, j: int | Tensor) -> Tensor:
        start = (as_index(j) - self.minimum).clamp(min=0, max=self._length)  # J >= j: start <= E < length
        return -self.rate * start + _log1mexp(self.rate * (self._length - start)) - self._log_total


@dataclass(frozen=True)
class Geometric(TruncationDistribution):
    """P(J = j) proportional to p (1 - p)^(j - minimum): each index past the minimum is the last with probability p.

    Parameters
    ----------
    p : float
        The probability to end.
    minimum : int
        The first index.
    maximum : int, optional
        The last index. By default there is no end.

    Examples
    --------
    >>> from rtgp.truncation import Geometric
    >>> round(Geometric(p=0.25).mean, 6)
    4.0
    """

    p: float
    minimum: int = 1
    maximum: int | None = None

    def __post_init__(self) -> None:
        check_number("Geometric", "p", self.p, below=1.0)
        check_integer("Geometric", "minimum", self.minimum)
        check_range("Geometric", self.minimum, self.maximum)

    @classmethod
    def from_moments(cls, mean: float, std: float) -> Geometric:
        """The member with a given standard deviation and the nearest mean. The minimum is an integer.

        Parameters
        ----------
        mean : float
            The wanted mean.
        std : float
            The wanted standard deviation.

        Returns
        -------
        Geometric
            The distribution.
        """
        check_wanted("Geometric", mean, std)
        p = 2 / (1 + math.sqrt(1 + 4 * std**2))  # solves std^2 = (1 - p) / p^2
        member = cls(p, max(1, round(mean + 1 - 1 / p)))
        check_reached(member, mean, std)
        return member

    @cached_property
    def _decay(self) -> ExponentialDecay:
        return ExponentialDecay(-math.log1p(-self.p), self.minimum, self.maximum)

    @property
    def first(self) -> int:
        return self.minimum

    @property
    def mean(self) -> float:
        return self._decay.mean

    @property
    def std(self) -> float:
        return self._decay.std

    def log_pmf(self, j: int | Tensor) -> Tensor:
        return self._decay.log_pmf(j)

    def log_survival(self, j: int | Tensor) -> Tensor:
        return self._decay.log_survival(j)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(-x)) for x >= 0 without cancellation: -inf at 0, 0 at infinity."""
    return torch.where(x < math.log(2), (-torch.expm1(-x)).log(), torch.log1p(-torch.exp(-x)))
