"""Errors and warnings of training."""

from __future__ import annotations

from rtgp.errors import RTGPError


class TrainingError(RTGPError):
    """Training met a value it cannot go on from; the parameters are those of the last good step."""


class CheckpointError(RTGPError):
    """A checkpoint that cannot be read, or that belongs to another problem."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was passed over for the one before it."""
