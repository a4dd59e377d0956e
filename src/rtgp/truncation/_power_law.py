"""Truncations with a power-law tail; exponent 1 is the paper's choice for the single-sample estimator (Sec. 4.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rtgp.truncation._checks import check_integer, check_number, reject
from rtgp.truncation._distributions import TruncationDistribution, as_index, check_range
from rtgp.truncation._moments import check_reached, check_wanted, find_root

_LONGEST_TABLE = 1 << 26  # points of a finite support, 0.5 GiB in float64


@dataclass(frozen=True)
class PowerLaw(TruncationDistribution):
    """P(J) proportional to J^-exponent on minimum, minimum + step, ..., up to maximum.

    Parameters
    ----------
    exponent : float
        Above 1 where there is no maximum. 1 is the paper's choice for the single-sample estimator (Sec. 4.2).
    minimum : int
        The first index.
    maximum : int, optional
        The last index. By default there is no end.
    step : int
        The distance of two indices.

    Examples
    --------
    >>> from rtgp.truncation import PowerLaw
    >>> round(float(PowerLaw(exponent=1, maximum=2).log_pmf(1).exp()), 6)
    0.666667
    """

    exponent: float
    minimum: int = 1
    maximum: int | None = None
    step: int = 1

    def __post_init__(self) -> None:
        check_number("PowerLaw", "exponent", self.exponent)
        check_integer("PowerLaw", "minimum", self.minimum)
        check_integer("PowerLaw", "step", self.step)
        check_range("PowerLaw", self.minimum, self.maximum)
        if self.maximum is None:
            if self.exponent <= 1:
                reject("PowerLaw", "exponent", "above 1 when there is no maximum", self.exponent)
            return
        points = (self.maximum - self.minimum) // self.step + 1
        if points > _LONGEST_TABLE:
            reject("PowerLaw", "maximum", f"None or such that the support has at most {_LONGEST_TABLE} points", points)
        # The last index with positive probability, so that `maximum` means the same in every family.
        object.__setattr__(self, "maximum", self.minimum + (points - 1) * self.step)

    @classmethod
    def from_moments(cls, mean: float, std: float, maximum: int | None = None, step: int = 1) -> PowerLaw:
        """The member with a given mean and the nearest standard deviation. The minimum is an integer.

        Parameters
        ----------
        mean : float
            The wanted mean.
        std : float
            The wanted standard deviation.
        maximum : int, optional
            The last index. By default there is no end.
        step : int
            The distance of two indices.

        Returns
        -------
        PowerLaw
            The distribution.
        """
        check_wanted("PowerLaw", mean, std)
        infinite = 2.0 if maximum is None else 0.0  # the mean is finite only above this exponent

        def with_mean(minimum: int) -> PowerLaw:
            def excess(shift: float) -> float:
                return cls(infinite + shift, minimum, maximum, step).mean - mean

            return cls(infinite + find_root(excess, 1e-9, 1e6), minimum, maximum, step)

        low, high = 1, max(1, math.ceil(mean) - 1)  # the standard deviation falls as the minimum rises to the mean
        if maximum is not None:  # and the mean lies below the middle of the support
            high = min(high, maximum)
            low = min(max(1, math.ceil(2 * mean - maximum)), high)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if with_mean(middle).std > std else (low, middle)
        candidates = [with_mean(minimum) for minimum in {max(1, low - 1), low}]
        member = min(candidates, key=lambda c: abs(c.mean - mean) / mean + abs(c.std - std) / std)
        check_reached(member, mean, std)
        return member

    @property
    def first(self) -> int:
        return self.minimum

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
        if self.exponent <= 2:
            return math.inf, math.inf
        mean = math.exp(self._log_power_moment(1))
        if self.exponent <= 3:
            return mean, math.inf
        return mean, mean * math.sqrt(math.expm1(max(self._log_power_moment(2) - 2 * math.log(mean), 0.0)))

    def _log_power_moment(self, power: int) -> float:
        """log E[J^power] = log(step^power zeta(s - power, q) / zeta(s, q)), infinite support."""
        q = torch.tensor(self.minimum / self.step, dtype=torch.float64)
        log_ratio = _log_hurwitz_zeta(self.exponent - power, q) - _log_hurwitz_zeta(self.exponent, q)
        return power * math.log(self.step) + float(log_ratio)

    @cached_property
    def _log_tails(self) -> Tensor:
        """Finite support: log of the unnormalised tail sums at each point, then -inf. (points + 1,)

        Summed from the far end, small terms first, in log scale so that a steep tail does not underflow to 0.
        """
        assert self.maximum is not None
        points = torch.arange(self.minimum, self.maximum + 1, self.step, dtype=torch.float64)
        tails = torch.logcumsumexp((-self.exponent * points.log()).flip(0), dim=0).flip(0)
        return torch.cat([tails, tails.new_full((1,), -math.inf)])

    def _log_tail(self, rank: Tensor) -> Tensor:
        """log of sum_{k >= rank} (minimum + k step)^-exponent."""
        if self.maximum is not None:
            return self._log_tails[rank.clamp(max=len(self._log_tails) - 1).long()]
        log_zeta = _log_hurwitz_zeta(self.exponent, self.minimum / self.step + rank)
        return log_zeta - self.exponent * math.log(self.step)

    @cached_property
    def _log_total(self) -> float:
        return float(self._log_tail(torch.zeros((), dtype=torch.float64)))

    def log_pmf(self, j: int | Tensor) -> Tensor:
        value = as_index(j)
        inside = (value >= self.minimum) & ((value - self.minimum) % self.step == 0)
        if self.maximum is not None:
            inside &= value <= self.maximum
        log_pmf = -self.exponent * value.clamp(min=1).log() - self._log_total
        return log_pmf.masked_fill(~inside, -math.inf)

    def log_survival(self, j: int | Tensor) -> Tensor:
        rank = ((as_index(j) - self.minimum) / self.step).ceil().clamp(min=0)  # points of the support before j
        return self._log_tail(rank) - self._log_total


# B_2i / (2i)!, the coefficients of the Euler-Maclaurin formula
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)


def _log_hurwitz_zeta(s: float, q: Tensor) -> Tensor:
    """log of zeta(s, q) = sum_{k >= 0} (q + k)^-s, for s > 1.

    torch.special.zeta underflows once q^-s does, which would end an infinite support. So q^-s is taken out: twelve
    terms of the sum relative to it, then Euler-Maclaurin for the rest.
    """
    shift = 12
    k = torch.arange(shift, dtype=torch.float64)
    head = torch.exp(-s * torch.log1p(k / q.unsqueeze(-1))).sum(-1)
    end = q + shift
    rest = end / (s - 1) + 0.5
    factor = s / end  # s (s + 1) ... (s + 2i - 2) / end^(2i - 1)
    for i, coefficient in enumerate(_BERNOULLI):
        rest = rest + coefficient * factor
        factor = factor * (s + 2 * i + 1) / end * (s + 2 * i + 2) / end
    # Where s is large beside q, `rest` is meaningless, and the power in front of it 0.
    tail = torch.exp(-s * torch.log1p(shift / q)) * rest
    return -s * q.log() + torch.log(head + tail)
