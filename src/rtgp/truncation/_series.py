"""The estimate of a whole series, psi = sum_j Delta_j, from one run: sum_j w_j Delta_j for each draw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from rtgp.errors import TruncationError
from rtgp.truncation._weighting import SingleSample, Weighting

_NO_PROXY = 1.0  # before the first increment, and for series that have no measure of their error


@runtime_checkable
class RandomAccessSeries(Protocol):
    """A series each of whose terms can be made by itself.

    Examples
    --------
    >>> from rtgp.truncation import RandomAccessSeries
    >>> class Halves:
    ...     length = 10
    ...     def term(self, j):
    ...         return 0.5**j
    >>> isinstance(Halves(), RandomAccessSeries)
    True
    """

    @property
    def length(self) -> int | None:
        """The number of terms; None for a series without end."""
        ...

    def term(self, j: int) -> Any:
        """Delta_j.

        Parameters
        ----------
        j : int
            The index, from 1.

        Returns
        -------
        object
            Anything with + and * float.
        """
        ...


@runtime_checkable
class SparseSeries(RandomAccessSeries, Protocol):
    """A random-access series that is zero but at known indices, such as a ladder of rungs.

    Examples
    --------
    >>> from rtgp.truncation import SparseSeries
    >>> class Rungs:
    ...     length, indices = 100, range(10, 101, 10)
    ...     def term(self, j):
    ...         return 1.0 / j
    >>> isinstance(Rungs(), SparseSeries)
    True
    """

    @property
    def indices(self) -> range:
        """The j that carry a term. `term` is never called elsewhere."""
        ...


def estimate(series: Iterable[tuple[Any, float]] | RandomAccessSeries, weighting: Weighting) -> tuple[Any, ...]:
    """An estimate of a full sum, from few of its terms.

    Parameters
    ----------
    series : iterable or RandomAccessSeries
        An iterable of (increment, error proxy after it; 1.0 if there is none), which is not advanced past the longest
        draw. Or a random-access series, of which only terms of nonzero weight are made.
    weighting : Weighting
        The weights of the terms.

    Returns
    -------
    tuple
        One estimate per draw. A draw that meets no term is 0.0.

    Examples
    --------
    The mean over many draws is the sum, which is 1:

    >>> import torch
    >>> from rtgp.truncation import Geometric, estimate, russian_roulette
    >>> series = [(0.5**j, 1.0) for j in range(1, 30)]
    >>> draws = estimate(series, russian_roulette(Geometric(0.25), 4000, torch.Generator().manual_seed(0)))
    >>> abs(sum(draws) / len(draws) - 1.0) < 0.05
    True
    """
    if isinstance(series, RandomAccessSeries):
        return _random_access(series, weighting)
    return _sequential(series, weighting)


def _sequential(series: Iterable[tuple[Any, float]], weighting: Weighting) -> tuple[Any, ...]:
    steps = iter(series)
    values: list[Any] = [0.0] * weighting.draws
    proxy = _NO_PROXY
    while True:
        try:
            weights = weighting.next(proxy)
        except TruncationError:
            # The support has ended. That is a bias only if the series has not: look, which costs one increment.
            if next(steps, None) is None:
                return tuple(values)
            raise
        # Asked for the weights first: making an increment that no draw wants may be costly.
        if weights is None or (step := next(steps, None)) is None:
            return tuple(values)
        increment, proxy = step
        _add(values, weights, increment)


def _random_access(series: RandomAccessSeries, weighting: Weighting) -> tuple[Any, ...]:
    indices = series.indices if isinstance(series, SparseSeries) else None
    if series.length is not None:
        weighting.require_support(series.length, indices)
    values: list[Any] = [0.0] * weighting.draws
    if isinstance(weighting, SingleSample):
        if series.length is None:  # the end cannot be checked, but everything before the drawn term can
            weighting.require_support(max(weighting.truncations), indices)
        for j in sorted(set(weighting.truncations)):
            if _has_term(series, indices, j):
                _add(values, weighting.weights(j), series.term(j))
        return tuple(values)
    j = 0
    while (series.length is None or j < series.length) and (weights := weighting.next(_NO_PROXY)) is not None:
        j += 1
        if _has_term(series, indices, j):
            _add(values, weights, series.term(j))
    return tuple(values)


def _has_term(series: RandomAccessSeries, indices: range | None, j: int) -> bool:
    return (series.length is None or j <= series.length) and (indices is None or j in indices)


def _add(values: list[Any], weights: tuple[float, ...], increment: Any) -> None:
    for draw, weight in enumerate(weights):
        if weight:
            values[draw] = values[draw] + increment * weight
