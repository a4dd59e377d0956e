"""Weights w_j with E[w_j] = 1 for the increments of a series, handed out one by one as the series is followed.

One object serves one run. Before each increment the run tells the error proxy of the sum so far and gets the weights
of the increment, one per draw, or None once every draw has ended:

    while (weights := weighting.next(proxy)) is not None: ...

fixed             1{j <= m}                    biased
russian_roulette  1{J >= j} / P(J >= j)        unbiased, Eq. eqn:rr
coupled_pair      two roulettes and the longer one of them, all three unbiased, the two independent
single_sample     1{J = j} / P(J = j)          unbiased, Eq. eqn:ss_estimator
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from rtgp.errors import SettingError, TruncationError
from rtgp.truncation import _randomness as randomness
from rtgp.truncation._checks import check_integer, reject
from rtgp.truncation._distributions import TruncationDistribution
from rtgp.truncation._rules import RunningSurvival, SurvivalRule


class Weighting(Protocol):
    """The weights of one run, with mean one in every term unless they are those of `fixed`.

    Attributes
    ----------
    draws : int
        Weights per increment.
    truncations : tuple of int
        J of each draw, so far.
    survival : list of float
        The probability that each increment was weighted by, so far.

    Examples
    --------
    >>> from rtgp.truncation import Uniform, russian_roulette
    >>> weighting = russian_roulette(Uniform(1, 2), uniforms=[0.4])
    >>> weighting.next(1.0), weighting.next(0.5), weighting.next(0.0)
    ((1.0,), (2.0,), None)
    >>> weighting.truncations
    (2,)
    """

    draws: int  # weights per increment
    truncations: tuple[int, ...]  # J of each draw, so far
    survival: list[float]  # the probability each increment was weighted by, so far

    def next(self, proxy: float) -> tuple[float, ...] | None:
        """The weights of the next increment.

        Parameters
        ----------
        proxy : float
            The error proxy of the sum so far.

        Returns
        -------
        tuple of float or None
            One weight per draw. None: every draw has ended.
        """
        ...

    def require_support(self, length: int, indices: range | None = None) -> None:
        """Raise an error if a series would be biased.

        Parameters
        ----------
        length : int
            The number of terms.
        indices : range, optional
            The j that carry a term, where the other terms are known to be zero. By default all.

        Raises
        ------
        TruncationError
            If a term can never be reached.
        """
        ...


def fixed(m: int | None, draws: int = 1) -> Weighting:
    """Weight 1 up to m, 0 beyond: the biased baseline.

    Parameters
    ----------
    m : int or None
        The truncation. None: to the end of the series, which must have one.
    draws : int
        How many.

    Returns
    -------
    Weighting
        The weights of one run.

    Examples
    --------
    >>> from rtgp.truncation import estimate, fixed
    >>> estimate([(0.5, 1.0), (0.25, 1.0), (0.125, 1.0)], fixed(2))
    (0.75,)
    """
    return _Fixed(m, draws)


def russian_roulette(
    rule: SurvivalRule,
    draws: int = 1,
    generator: torch.Generator | None = None,
    uniforms: Sequence[float] | None = None,
) -> Weighting:
    """Independent roulettes that share one run.

    Parameters
    ----------
    rule : SurvivalRule
        The survival probability.
    draws : int
        How many.
    generator : torch.Generator, optional
        The source of random numbers. By default torch's own generator.
    uniforms : sequence of float, optional
        Numbers in (0, 1], one per draw, in place of random ones.

    Returns
    -------
    Weighting
        The weights of one run.

    Examples
    --------
    >>> from rtgp.truncation import Uniform, estimate, russian_roulette
    >>> estimate([(0.5, 1.0), (0.25, 1.0)], russian_roulette(Uniform(1, 2), draws=2, uniforms=[0.9, 0.1]))
    (0.5, 1.0)
    """
    return _Roulette(rule, _drawn("russian_roulette", draws, generator, uniforms), draws)


def coupled_pair(
    rule: SurvivalRule, generator: torch.Generator | None = None, uniforms: Sequence[float] | None = None
) -> Weighting:
    """Three draws of one run: two independent ones, and the longer of the two.

    All three are unbiased. `rule` gives the survival M of the longest. The first two have the survival S with
    1 - (1 - S)^2 = M.

    Parameters
    ----------
    rule : SurvivalRule
        The survival probability of the longest.
    generator : torch.Generator, optional
        The source of random numbers. By default torch's own generator.
    uniforms : sequence of float, optional
        Two numbers in (0, 1] in place of random ones.

    Returns
    -------
    Weighting
        The weights of (first, second, longest).

    Examples
    --------
    >>> from rtgp.truncation import Uniform, coupled_pair, estimate
    >>> weighting = coupled_pair(Uniform(1, 2), uniforms=[0.9, 0.1])
    >>> [round(value, 3) for value in estimate([(0.5, 1.0), (0.25, 1.0)], weighting)]
    [0.5, 1.354, 1.0]
    >>> weighting.truncations
    (1, 2, 2)
    """
    return _CoupledPair(rule, _drawn("coupled_pair", 2, generator, uniforms), draws=3)


def single_sample(
    distribution: TruncationDistribution,
    draws: int = 1,
    generator: torch.Generator | None = None,
    uniforms: Sequence[float] | None = None,
) -> SingleSample:
    """Each draw keeps one increment only, J, which is known in advance.

    Parameters
    ----------
    distribution : TruncationDistribution
        The law of J. A rule that follows the path has no P(J = j) in advance.
    draws : int
        How many.
    generator : torch.Generator, optional
        The source of random numbers. By default torch's own generator.
    uniforms : sequence of float, optional
        Numbers in (0, 1], one per draw, in place of random ones.

    Returns
    -------
    Weighting
        The weights of one run; its `truncations` are the J.

    Examples
    --------
    >>> from rtgp.truncation import Uniform, estimate, single_sample
    >>> estimate([(0.5, 1.0), (0.25, 1.0)], single_sample(Uniform(1, 2), uniforms=[0.1]))
    (0.5,)
    """
    if not isinstance(distribution, TruncationDistribution):
        expected = "a truncation distribution (a rule that follows the path has no P(J = j) in advance)"
        reject("single_sample", "distribution", expected, distribution)
    return SingleSample(distribution, _drawn("single_sample", draws, generator, uniforms))


class _Fixed:
    def __init__(self, m: int | None, draws: int) -> None:
        if m is not None:
            check_integer("fixed", "m", m)
        check_integer("fixed", "draws", draws)
        self.draws = draws
        self.truncations = (0,) * draws
        self.survival: list[float] = []
        self._m = m

    def next(self, proxy: float) -> tuple[float, ...] | None:
        j = len(self.survival) + 1
        if self._m is not None and j > self._m:
            return None
        self.survival.append(1.0)
        self.truncations = (j,) * self.draws
        return (1.0,) * self.draws

    def require_support(self, length: int, indices: range | None = None) -> None:
        """Nothing to require: the bias is what was asked for."""


class _Roulette:
    """w_j = 1{U <= S_j} / S_j. With S non-increasing, U <= S_j says that the draw has survived up to j."""

    def __init__(self, rule: SurvivalRule, uniforms: list[float], draws: int) -> None:
        if not isinstance(rule, SurvivalRule):
            reject("russian_roulette and coupled_pair", "rule", "a distribution or another survival rule", rule)
        self.draws = draws
        self.truncations = (0,) * draws
        self.survival: list[float] = []
        self._rule = rule
        self._running = RunningSurvival(rule)
        self._uniforms = uniforms
        self._ended = False

    def _weights(self, log_survival: float) -> tuple[float, ...]:
        survival = math.exp(log_survival)
        return tuple(1.0 / survival if u <= survival else 0.0 for u in self._uniforms)

    def next(self, proxy: float) -> tuple[float, ...] | None:
        if self._ended:
            return None
        j = len(self.survival) + 1
        log_survival = self._running.next(proxy)
        if log_survival == -math.inf and proxy != 0:  # a draw is alive and the series goes on: its rest would be lost
            raise _support_ends(self._rule, j)
        weights = self._weights(log_survival)
        self._ended = not any(weights)
        if self._ended:
            return None
        self.truncations = tuple(j if w else J for w, J in zip(weights, self.truncations, strict=True))
        self.survival.append(math.exp(log_survival))
        return weights

    def require_support(self, length: int, indices: range | None = None) -> None:
        last = length if indices is None else max(indices, default=0)
        if self._rule.maximum is not None and self._rule.maximum < last:
            raise _support_ends(self._rule, self._rule.maximum + 1, last)


class _CoupledPair(_Roulette):
    """The rule's survival is M, that of max(J1, J2); each of the two has S = 1 - sqrt(1 - M)."""

    def _weights(self, log_survival: float) -> tuple[float, ...]:
        longest = math.exp(log_survival)  # M
        single = longest / (1 + math.sqrt(-math.expm1(log_survival)))  # S, without the cancellation of 1 - sqrt(1 - M)
        first, second = (u <= single for u in self._uniforms)
        # The longest is weighted by M itself: 1 - (1 - S)^2 would lose it to rounding once M is small.
        return (
            1.0 / single if first else 0.0,
            1.0 / single if second else 0.0,
            1.0 / longest if first or second else 0.0,
        )


class SingleSample:
    """w_j = 1{J = j} / P(J = j). The whole of each draw rests on its one term."""

    def __init__(self, distribution: TruncationDistribution, uniforms: list[float]) -> None:
        self.draws = len(uniforms)
        uniform = torch.tensor(uniforms, dtype=torch.float64)
        self.truncations: tuple[int, ...] = tuple(distribution.truncation_at(uniform).tolist())
        self.survival: list[float] = []  # here P(J = j)
        self._distribution = distribution
        self._asked = 0

    def next(self, proxy: float) -> tuple[float, ...] | None:
        longest = max(self.truncations)
        j = self._asked + 1
        if proxy == 0 or (j > longest and longest != self._distribution.maximum):
            return None
        if j > longest:
            raise _support_ends(self._distribution, j)
        self._asked = j
        return self.weights(j)

    def weights(self, j: int) -> tuple[float, ...]:
        """The weights of one increment.

        Parameters
        ----------
        j : int
            Its index.

        Returns
        -------
        tuple of float
            One weight per draw.
        """
        probability = math.exp(float(self._distribution.log_pmf(j)))
        if probability == 0:
            raise _gap(self._distribution, j)
        self.survival.append(probability)
        return tuple(1.0 / probability if j == J else 0.0 for J in self.truncations)

    def require_support(self, length: int, indices: range | None = None) -> None:
        """Every index that carries a term must have a positive probability, not only the last."""
        points = range(1, length + 1) if indices is None else indices
        maximum = self._distribution.maximum
        if maximum is not None and maximum < max(points, default=0):
            raise _support_ends(self._distribution, maximum + 1, max(points))
        missing = self._distribution.log_pmf(torch.tensor(points, dtype=torch.int64)) == -math.inf
        if bool(missing.any()):
            raise _gap(self._distribution, points[int(missing.int().argmax())])


def _drawn(owner: str, count: int, generator: torch.Generator | None, uniforms: Sequence[float] | None) -> list[float]:
    """`count` uniform numbers: the given ones if any, else fresh ones."""
    check_integer(owner, "draws", count)
    if uniforms is None:
        return randomness.uniforms(count, generator)
    if generator is not None:
        raise SettingError(f"{owner} takes either 'generator' or 'uniforms'. Got both: leave one out.")
    given = [float(u) for u in uniforms]
    if len(given) != count or not all(0 < u <= 1 for u in given):
        reject(owner, "uniforms", f"{count} number(s) in (0, 1], one per draw", uniforms)
    return given


def _support_ends(rule: object, j: int, length: int | None = None) -> TruncationError:
    goes_on = "goes on" if length is None else f"has {length} terms"
    return TruncationError(
        f"P(J >= {j}) is 0 under {rule!r:.100}, but the series {goes_on}: the terms from {j} on would be lost and the "
        "estimate biased. Use a rule without a maximum, or one that reaches the end of the series."
    )


def _gap(distribution: TruncationDistribution, j: int) -> TruncationError:
    return TruncationError(
        f"P(J = {j}) is 0 under {distribution!r:.100}, so a single sample would lose term {j}. Use a distribution "
        "that is positive on every term, or give the series `indices` that name its nonzero terms."
    )
