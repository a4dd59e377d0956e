"""Many processes on one problem, by torch.distributed: who owns which rows, what they exchange, who is still there."""

from rtgp.distributed.environment import environment
from rtgp.distributed.errors import DisagreementError, RankError, is_on_every_rank, on_every_rank
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
    "is_on_every_rank",
    "launched",
    "on_every_rank",
    "start",
    "stop",
    "world",
]
