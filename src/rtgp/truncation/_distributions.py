"""Truncation distributions: a random J whose law is fixed before the series is looked at.

Here is the base class; `Fixed` and `Uniform` are the two families without a parameter of shape.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from rtgp.errors import SettingError
from rtgp.truncation._checks import check_integer, check_number, reject
from rtgp.truncation._moments import check_reached, check_wanted
from rtgp.truncation._randomness import uniforms

_AHEAD = 256  # indices whose survival is computed together during a run
_BLOCK = 1 << 16  # indices summed at once
_NEGLIGIBLE = -100.0  # log-survival below which the rest of a support adds nothing to a moment in float64
_LARGEST = 1 << 62  # samples of a heavy tail are cut here, before int64 overflows


class TruncationDistribution(ABC):
    """A law of J on 1, 2, ... that is fixed in advance; a survival rule that ignores the path.

    Attributes
    ----------
    maximum : int or None
        The last index of the support; None if it is infinite.

    Examples
    --------
    >>> import torch
    >>> from rtgp.truncation import Uniform
    >>> law = Uniform(1, 4)
    >>> law.mean, law.first, law.maximum
    (2.5, 1, 4)
    >>> law.log_survival(torch.tensor([1, 2, 3, 4, 5])).exp()
    tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    >>> law.sample(3, torch.Generator().manual_seed(0)).shape
    torch.Size([3])
    """

    maximum: int | None  # last index of the support, None if it is infinite

    @property
    @abstractmethod
    def first(self) -> int:
        """The first index of the support, P(J >= first) = 1."""

    @abstractmethod
    def log_pmf(self, j: int | Tensor) -> Tensor:
        """log P(J = j) in float64.

        Parameters
        ----------
        j : int or Tensor
            Indices.

        Returns
        -------
        Tensor
            Of the shape of j; -inf outside the support.
        """

    @abstractmethod
    def log_survival(self, j: int | Tensor) -> Tensor:
        """log P(J >= j) in float64. It is never computed as 1 - cdf.

        Parameters
        ----------
        j : int or Tensor
            Indices.

        Returns
        -------
        Tensor
            Of the shape of j; -inf past the support.
        """

    @property
    @abstractmethod
    def mean(self) -> float:
        """E[J]; inf if it does not exist."""

    @property
    @abstractmethod
    def std(self) -> float:
        """Standard deviation of J; inf if it does not exist."""

    def log_survival_given(self, j: int, path: Sequence[float]) -> float:
        """log P(J >= j), whatever the path.

        Parameters
        ----------
        j : int
            An index.
        path : sequence of float
            The error proxies so far, which are not looked at.

        Returns
        -------
        float
            -inf past the support.
        """
        block, offset = divmod(j, _AHEAD)
        if block not in self._log_survival_ahead:  # a run asks index by index: many at once cost no more than one
            indices = torch.arange(block * _AHEAD, (block + 1) * _AHEAD)
            self._log_survival_ahead[block] = self.log_survival(indices).tolist()
        return self._log_survival_ahead[block][offset]

    @cached_property
    def _log_survival_ahead(self) -> dict[int, list[float]]:
        return {}

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent truncations.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator, optional
            The source of random numbers. By default torch's own generator.

        Returns
        -------
        Tensor
            int64, (n,).
        """
        return self.truncation_at(torch.tensor(uniforms(n, generator), dtype=torch.float64))

    def truncation_at(self, uniform: Tensor) -> Tensor:
        """J = max{j : U <= S_j}: where a roulette with the uniform number U would have stopped.

        Parameters
        ----------
        uniform : Tensor
            Numbers in (0, 1], (n,).

        Returns
        -------
        Tensor
            int64, (n,).
        """
        low = torch.full_like(uniform, self.first, dtype=torch.int64)  # U <= S(low)
        if self.maximum is not None:
            high = torch.full_like(low, self.maximum + 1)  # S(high) < U
        else:
            high = low + 1
            survivors = torch.arange(len(uniform))  # those whose `high` must be raised
            while len(survivors := survivors[self._survives(uniform, high, survivors)]) > 0:
                low[survivors] = high[survivors]
                high[survivors] = (2 * high[survivors] - self.first).clamp(max=_LARGEST)
                survivors = survivors[high[survivors] < _LARGEST]
        while len(undecided := torch.nonzero(high - low > 1).squeeze(-1)) > 0:
            middle = low + (high - low) // 2
            survives = self._survives(uniform, middle, undecided)
            low[undecided[survives]] = middle[undecided[survives]]
            high[undecided[~survives]] = middle[undecided[~survives]]
        return low

    def _survives(self, uniform: Tensor, j: Tensor, which: Tensor) -> Tensor:
        return uniform[which] <= self.log_survival(j[which]).exp()

    def _summed_moments(self) -> tuple[float, float]:
        """Mean and standard deviation by summing over a finite support."""
        if self.maximum is None:
            raise SettingError(f"The support of {self!r} is infinite: its moments cannot be summed.")
        first_moment = second_moment = 0.0  # of J - first, so that little cancels
        for start in range(self.first, self.maximum + 1, _BLOCK):
            if float(self.log_survival(start)) < _NEGLIGIBLE:
                break
            j = torch.arange(start, min(start + _BLOCK, self.maximum + 1))
            probability, offset = self.log_pmf(j).exp(), (j - self.first).double()
            first_moment += float((probability * offset).sum())
            second_moment += float((probability * offset**2).sum())
        return self.first + first_moment, math.sqrt(max(second_moment - first_moment**2, 0.0))


def as_index(j: int | Tensor) -> Tensor:
    """An index or a tensor of indices as float64 (exact up to 2^53)."""
    tensor = torch.as_tensor(j)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise SettingError(f"The index 'j' must be an integer or an integer tensor. Got {j!r} instead.")
    return tensor.double()


def check_range(owner: str, minimum: float, maximum: int | None) -> None:
    """Require a maximum (if any) that is an integer not below the minimum."""
    if maximum is not None:
        check_integer(owner, "maximum", maximum)
        if maximum < minimum:
            reject(owner, "maximum", f"None or at least the minimum ({minimum:g})", maximum)


@dataclass(frozen=True)
class Fixed(TruncationDistribution):
    """J = m for certain. As a roulette it is unbiased only for series of at most m terms.

    Parameters
    ----------
    m : int
        The truncation.

    Examples
    --------
    >>> from rtgp.truncation import Fixed
    >>> Fixed(20).mean
    20.0
    """

    m: int
    maximum: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("Fixed", "m", self.m)
        object.__setattr__(self, "maximum", self.m)

    @classmethod
    def from_moments(cls, mean: float, std: float = 0.0) -> Fixed:
        """The member whose m is nearest to a mean.

        Parameters
        ----------
        mean : float
            The wanted mean.
        std : float
            The wanted standard deviation, which must be 0.

        Returns
        -------
        Fixed
            The distribution.
        """
        check_number("Fixed", "mean", mean)
        member = cls(max(1, round(mean)))
        check_reached(member, mean, std)
        return member

    @property
    def first(self) -> int:
        return self.m

    @property
    def mean(self) -> float:
        return float(self.m)

    @property
    def std(self) -> float:
        return 0.0

    def log_pmf(self, j: int | Tensor) -> Tensor:
        return (as_index(j) == self.m).double().log()

    def log_survival(self, j: int | Tensor) -> Tensor:
        return (as_index(j) <= self.m).double().log()


@dataclass(frozen=True)
class Uniform(TruncationDistribution):
    """J equally likely at minimum, ..., maximum.

    Parameters
    ----------
    minimum, maximum : int
        The first and the last index.

    Examples
    --------
    >>> from rtgp.truncation import Uniform
    >>> Uniform(10, 30).mean
    20.0
    """

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        check_integer("Uniform", "minimum", self.minimum)
        check_integer("Uniform", "maximum", self.maximum)
        check_range("Uniform", self.minimum, self.maximum)

    @classmethod
    def from_moments(cls, mean: float, std: float) -> Uniform:
        """The member nearest to a mean and standard deviation. Both ends are integers.

        Parameters
        ----------
        mean : float
            The wanted mean.
        std : float
            The wanted standard deviation.

        Returns
        -------
        Uniform
            The distribution.
        """
        check_wanted("Uniform", mean, std)
        count = math.sqrt(12 * std**2 + 1)  # the variance of n equally likely integers is (n^2 - 1) / 12
        candidates = []
        for n in {math.floor(count), math.ceil(count)}:
            start = mean - (n - 1) / 2
            candidates += [cls(m, m + n - 1) for m in {max(1, math.floor(start)), max(1, math.ceil(start))}]
        member = min(candidates, key=lambda c: abs(c.mean - mean) / mean + abs(c.std - std) / std)
        check_reached(member, mean, std)
        return member

    @property
    def first(self) -> int:
        return self.minimum

    @property
    def mean(self) -> float:
        return (self.minimum + self.maximum) / 2

    @property
    def std(self) -> float:
        return math.sqrt(((self.maximum - self.minimum + 1) ** 2 - 1) / 12)

    def log_pmf(self, j: int | Tensor) -> Tensor:
        inside = (as_index(j) >= self.minimum) & (as_index(j) <= self.maximum)
        return inside.double().log() - math.log(self.maximum - self.minimum + 1)

    def log_survival(self, j: int | Tensor) -> Tensor:
        left = self.maximum + 1 - as_index(j).clamp(min=self.minimum)  # indices from j to the end
        return left.clamp(min=0).log() - math.log(self.maximum - self.minimum + 1)
