"""Slow, independent versions of the truncation laws, written from their definitions with mpmath and NumPy."""

from __future__ import annotations

from functools import cache

import mpmath
import numpy as np

from rtgp.truncation import ExponentialDecay, Fixed, Geometric, PowerLaw, Tabulated, TruncationDistribution, Uniform

LIMIT = 400  # infinite supports are tabulated up to here


@cache
def pmf_table(law: TruncationDistribution) -> np.ndarray:
    """P(J = 1), P(J = 2), ..., up to the end of the support or LIMIT."""
    last = law.maximum or LIMIT
    with mpmath.workdps(40):
        total = _total(law)
        return np.array([float(_weight(law, j) / total) for j in range(1, last + 1)])


def survival_table(law: TruncationDistribution) -> np.ndarray:
    """P(J >= 1), P(J >= 2), ...: sums of the pmf from the far end, beyond which the law says what is left."""
    pmf = pmf_table(law)
    return np.cumsum(pmf[::-1])[::-1] + (0.0 if law.maximum else float(_beyond(law, LIMIT)))


def moments(law: TruncationDistribution) -> tuple[float, float]:
    """Mean and standard deviation by brute force (for laws whose tail beyond LIMIT does not count)."""
    pmf = pmf_table(law)
    j = np.arange(1, len(pmf) + 1)
    mean = float(pmf @ j)
    return mean, float(np.sqrt(pmf @ (j - mean) ** 2))


def _weight(law: TruncationDistribution, j: int) -> mpmath.mpf:
    """What P(J = j) is proportional to."""
    if law.maximum is not None and j > law.maximum:
        return mpmath.mpf(0)
    match law:
        case ExponentialDecay(rate, minimum):  # Eq. 14; for a real minimum the integer part of minimum + E
            if float(minimum).is_integer():
                return mpmath.exp(-rate * mpmath.mpf(j - minimum)) if j >= minimum else mpmath.mpf(0)
            low, high = (max(i - mpmath.mpf(minimum), 0) for i in (j, j + 1))
            return mpmath.exp(-rate * low) - mpmath.exp(-rate * high)
        case Geometric(p, minimum):
            return p * (1 - mpmath.mpf(p)) ** (j - minimum) if j >= minimum else mpmath.mpf(0)
        case PowerLaw(exponent, minimum, _, step):
            inside = j >= minimum and (j - minimum) % step == 0
            return mpmath.mpf(j) ** -mpmath.mpf(exponent) if inside else mpmath.mpf(0)
        case Uniform(minimum):
            return mpmath.mpf(j >= minimum)
        case Fixed(m):
            return mpmath.mpf(j == m)
        case Tabulated(survival):
            return mpmath.mpf([*survival, 0.0][j - 1]) - mpmath.mpf([*survival, 0.0][j])
    raise NotImplementedError(law)


def _total(law: TruncationDistribution) -> mpmath.mpf:
    """The sum of the weights over the whole support."""
    if law.maximum is not None:
        return mpmath.fsum(_weight(law, j) for j in range(1, law.maximum + 1))
    match law:
        case ExponentialDecay(rate, minimum):
            return 1 / (1 - mpmath.exp(-mpmath.mpf(rate))) if float(minimum).is_integer() else mpmath.mpf(1)
        case Geometric():
            return mpmath.mpf(1)
        case PowerLaw(exponent, minimum, _, step):
            return mpmath.mpf(step) ** -mpmath.mpf(exponent) * mpmath.zeta(exponent, mpmath.mpf(minimum) / step)
    raise NotImplementedError(law)


def _beyond(law: TruncationDistribution, last: int) -> mpmath.mpf:
    """P(J > last) for an infinite support."""
    match law:
        case ExponentialDecay(rate, minimum):
            return mpmath.exp(-rate * (last + 1 - minimum))
        case Geometric(p, minimum):
            return (1 - mpmath.mpf(p)) ** (last + 1 - minimum)
        case PowerLaw(exponent, minimum, _, step):
            following = next(i for i in range(last + 1, last + 1 + step) if (i - minimum) % step == 0)
            scale = mpmath.zeta(exponent, mpmath.mpf(minimum) / step)
            return mpmath.zeta(exponent, mpmath.mpf(following) / step) / scale
    raise NotImplementedError(law)
