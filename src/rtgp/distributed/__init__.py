"""Many processes on one problem, by torch.distributed: who owns which rows, what they exchange, who is still there."""

from rtgp.distributed.environment import environment
from rtgp.distributed.errors import DisagreementError, RankError, everywhere, is_everywhere
from rtgp.distributed.group import Group, checksum
from rtgp.distributed.start import TIMEOUT, active, launched, start, stop, world

__all__ = [
    "TIMEOUT",
    "DisagreementError",
    "Group",
    "RankError",
    "active",
    "checksum",
    "environment",
    "everywhere",
    "is_everywhere",
    "launched",
    "start",
    "stop",
    "world",
]
