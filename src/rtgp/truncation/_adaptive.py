"""A survival probability that follows the run and needs no tuning to the series at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rtgp.truncation._checks import check_number


@dataclass(frozen=True)
class ResidualDriven:
    """Survival that follows the error of the run: S_1 = 1, S_{j+1} = min(S_j, proxy_j / tau).

    The series goes on for sure until the error proxy falls below tau. If the error of the sum of j increments is at
    most kappa proxy_j, the variance of the roulette is at most (kappa tau)^2, and 7/3 (kappa tau)^2 for each of a
    coupled pair.

    The running minimum is the caller's (see `rules`), so only the newest proxy is read. The law of J depends on the
    path: there is no pmf, no mean and no sampling ahead of the run.

    Parameters
    ----------
    tau : float
        A standard deviation in units of the proxy. Too large a value is the dangerous side. A proxy of 0 says that the
        series has ended.

    Examples
    --------
    >>> import math
    >>> from rtgp.truncation import ResidualDriven
    >>> round(math.exp(ResidualDriven(tau=0.1).log_survival_given(2, [1.0, 0.05])), 6)
    0.5
    """

    tau: float = 0.05

    def __post_init__(self) -> None:
        check_number("ResidualDriven", "tau", self.tau)

    @property
    def maximum(self) -> None:
        """None, for the rule has no end of its own. The proxy says when the series is over."""
        return None

    def log_survival_given(self, j: int, path: Sequence[float]) -> float:
        """min(0, log(proxy_{j-1} / tau)), and 0 at j = 1.

        Parameters
        ----------
        j : int
            The next index.
        path : sequence of float
            The error proxies so far.

        Returns
        -------
        float
            -inf where the newest proxy is 0.
        """
        proxy = path[j - 1]
        if j == 1 or proxy >= self.tau:
            return 0.0
        # A difference of logarithms: proxy / tau could underflow, and 0 would say that the series has ended.
        return math.log(proxy) - math.log(self.tau) if proxy > 0 else -math.inf
