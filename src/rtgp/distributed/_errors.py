"""What can go wrong between ranks."""

from rtgp.errors import RTGPError


def on_every_rank(error: RTGPError) -> RTGPError:
    """The same error, marked as one that is raised on every rank, so that one of them may speak for all.

    Parameters
    ----------
    error : RTGPError
        The error to mark.

    Returns
    -------
    RTGPError
        The same object.

    Examples
    --------
    >>> from rtgp import distributed, errors
    >>> distributed.is_on_every_rank(distributed.on_every_rank(errors.InputError("Expected a number.")))
    True
    """
    error.add_note(_EVERYWHERE)
    return error


def is_on_every_rank(error: BaseException) -> bool:
    """Whether an error is raised on every rank.

    Parameters
    ----------
    error : BaseException
        Any error.

    Returns
    -------
    bool
        True if `on_every_rank` marked it.

    Examples
    --------
    >>> from rtgp import distributed
    >>> distributed.is_on_every_rank(ValueError())
    False
    """
    return _EVERYWHERE in getattr(error, "__notes__", ())


_EVERYWHERE = "Raised on every rank."


class RankError(RTGPError):
    """A rank is gone, stands still, or could not do its part."""


class DisagreementError(RTGPError):
    """Ranks that should do the same work on the same data do not. Raised on every rank alike."""
