"""Every error the library raises on purpose.

One root, `RTGPError`, which is a `ValueError`: catching that is enough. Each message states what was expected,
what came instead, and what to do about it.
"""


class RTGPError(ValueError):
    """Root of all errors raised by rtgp."""


class InputError(RTGPError):
    """Data of the wrong shape, type or content (NaN, infinity, mismatched rows)."""


class SettingError(RTGPError):
    """A setting outside its allowed range, or an unknown name."""


class UnsupportedModelError(RTGPError):
    """A model, kernel or likelihood that cannot be read."""


class TruncationError(RTGPError):
    """A truncation rule that would bias the series it is applied to."""


class NotPositiveDefiniteError(RTGPError):
    """A matrix that had to be positive definite and is not, at the working precision."""


class ConvergenceError(RTGPError):
    """An iterative solve that did not reach the working precision."""


class NotInstalledError(RTGPError, ImportError):
    """A part that this installation does not have. The message says how to get it."""


class StorageError(RTGPError):
    """A file that could not be written: a full disk, a read-only folder. What stood there before stays."""


class OutOfMemoryError(RTGPError, MemoryError):
    """Work that does not fit into the memory of the machine or of the card."""


class PrecisionWarning(UserWarning):
    """float32 cannot represent the system well enough for the result to be trusted."""


class ApproximationWarning(UserWarning):
    """An approximation that is too far from what it stands for to be trusted with the hyperparameters."""
