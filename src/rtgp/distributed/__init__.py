"""Many processes on one problem, by torch.distributed: who owns which rows, what they exchange, who is still there."""

from rtgp.distributed._environment import environment
from rtgp.distributed._errors import DisagreementError, RankError, is_on_every_rank, on_every_rank
from rtgp.distributed._group import Group, checksum
from rtgp.distributed._start import TIMEOUT, active, launched, start, stop, world

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
