"""Settings of preconditioners, as users give them."""

from __future__ import annotations

from dataclasses import dataclass

from rtgp._preconditioners.pivoted_cholesky import PivotedCholesky
from rtgp.errors import SettingError


@dataclass(frozen=True)
class Neighbours:
    """Neighbours alone: a sparse inverse factor, for rough, spatial or nearly noise-free data.

    Parameters
    ----------
    count : int, optional
        Earlier points that each point is conditioned on. By default 32.

    Examples
    --------
    >>> import rtgp
    >>> rtgp.RRCG(preconditioner=rtgp.Neighbours(16)).preconditioner
    Neighbours(count=16)
    """

    count: int | None = None

    def __post_init__(self) -> None:
        _positive_or_none(self, "count")


@dataclass(frozen=True)
class LowRankAndNeighbours:
    """A low-rank preconditioner, and neighbours for what it leaves.

    Parameters
    ----------
    rank : int, optional
        Columns of the low-rank part. By default sqrt(2 n r) for r right-hand sides.
    count : int, optional
        Neighbours of each point. By default 64.

    Examples
    --------
    >>> import rtgp
    >>> rtgp.RRCG(preconditioner=rtgp.LowRankAndNeighbours(rank=50)).preconditioner
    LowRankAndNeighbours(rank=50, count=None)
    """

    rank: int | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        _positive_or_none(self, "rank")
        _positive_or_none(self, "count")


@dataclass(frozen=True)
class Automatic:
    """A low rank, neighbours or both, of the size that makes the cheapest step.

    It is found by trials, and again after the hyperparameters have moved far.

    Examples
    --------
    >>> import rtgp
    >>> rtgp.RRCG().preconditioner
    Automatic()
    """


PreconditionerSettings = PivotedCholesky | Neighbours | LowRankAndNeighbours | Automatic


def _positive_or_none(settings: object, name: str) -> None:
    value = getattr(settings, name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise SettingError(
            f"The '{name}' parameter of {type(settings).__name__} must be a positive integer or None. "
            f"Got {value!r} instead."
        )
