"""What can go wrong between ranks."""

from rtgp.errors import RTGPError


def everywhere(error: RTGPError) -> RTGPError:
    """The same error, marked as one that is raised on every rank, so that one of them may speak for all."""
    error.add_note(_EVERYWHERE)
    return error


def is_everywhere(error: BaseException) -> bool:
    return _EVERYWHERE in getattr(error, "__notes__", ())


_EVERYWHERE = "Raised on every rank."


class RankError(RTGPError):
    """A rank is gone, stands still, or could not do its part."""


class DisagreementError(RTGPError):
    """Ranks that should do the same work on the same data do not. Raised on every rank alike."""
