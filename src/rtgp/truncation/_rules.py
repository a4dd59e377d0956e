"""What decides how long a series is followed: a survival probability, fixed in advance or led by the path.

A rule *proposes* a survival probability at j from what the series has shown up to j - 1. The survival that holds is

    log S_j = min over i <= j of rule.log_survival_given(i, path[:i]),

the running minimum of the proposals. It is taken here, once, so that a rule may look at the newest entry of the path
only (constant time per term) and need not remember. Without the running minimum the result is biased: a draw goes on
while U <= S_i, so P(J >= j) = min_{i <= j} S_i, whatever the rule says. A distribution's proposals are already
non-increasing, and log_survival_given is log P(J >= j) itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rtgp.errors import TruncationError


@runtime_checkable
class SurvivalRule(Protocol):
    """A survival probability at every index, which may depend on the path.

    Every truncation distribution is one, and so is `ResidualDriven`.

    Examples
    --------
    >>> from rtgp.truncation import ResidualDriven, SurvivalRule, Uniform
    >>> isinstance(Uniform(1, 4), SurvivalRule), isinstance(ResidualDriven(), SurvivalRule)
    (True, True)
    """

    @property
    def maximum(self) -> int | None:
        """The last index with a positive survival; None if the rule has no end of its own."""
        ...

    def log_survival_given(self, j: int, path: Sequence[float]) -> float:
        """The proposed log P(J >= j).

        The path must only be read, and the answer may depend on nothing else, or the estimate is no longer unbiased.

        Parameters
        ----------
        j : int
            The next index.
        path : sequence of float
            (proxy_0, ..., proxy_{j-1}). proxy_i is the error proxy of the sum of i increments, proxy_0 that of the
            empty sum.

        Returns
        -------
        float
            -inf past the end of the support.
        """
        ...


class RunningSurvival:
    """The survival along one run: keeps the path and the running minimum of a rule's proposals."""

    def __init__(self, rule: SurvivalRule) -> None:
        self._rule = rule
        self._path: list[float] = []
        self._log_survival = 0.0

    def next(self, proxy: float) -> float:
        """log S_j of the next index, given the error proxy of the sum so far."""
        if not proxy >= 0:  # also catches NaN
            raise TruncationError(
                f"An error proxy must be a non-negative number. Got {proxy!r} after {len(self._path)} increments. "
                "The series has broken down: its weights can no longer be trusted."
            )
        self._path.append(proxy)
        proposal = self._rule.log_survival_given(len(self._path), self._path)
        if math.isnan(proposal):
            raise TruncationError(f"The survival proposed by {self._rule!r} is not a number at j = {len(self._path)}.")
        self._log_survival = min(self._log_survival, proposal)
        return self._log_survival


def survival_path(rule: SurvivalRule, path: Sequence[float]) -> list[float]:
    """S_1, ..., S_H along a path that is known as a whole.

    Parameters
    ----------
    rule : SurvivalRule
        The rule.
    path : sequence of float
        (proxy_0, ..., proxy_{H-1}), the error proxies of the sums.

    Returns
    -------
    list of float
        The survival probabilities, never rising.

    Examples
    --------
    >>> from rtgp.truncation import ResidualDriven, survival_path
    >>> [round(s, 3) for s in survival_path(ResidualDriven(tau=0.1), [1.0, 0.2, 0.05, 0.08, 0.01])]
    [1.0, 1.0, 0.5, 0.5, 0.1]
    """
    running = RunningSurvival(rule)
    return [math.exp(running.next(proxy)) for proxy in path]
