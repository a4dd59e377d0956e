"""Preconditioners read back from a checkpoint."""

from __future__ import annotations

import torch

from rtgp._preconditioners.combined import LowRankAndNeighboursInverse
from rtgp._preconditioners.low_rank import LowRank, Scaled
from rtgp._preconditioners.neighbour_control import NeighbourControl
from rtgp._preconditioners.nystroem_control import NystroemControl
from rtgp._preconditioners.protocol import Control, Preconditioner
from rtgp._preconditioners.sparse_inverse import SparseInverse
from rtgp._state import State
from rtgp.distributed import Group


def preconditioner_from_state(
    state: State, dtype: torch.dtype, group: Group, size: int | None
) -> tuple[Preconditioner, Control | None]:
    """Whichever kind was saved, with its control variate if it had one."""
    if "combined_factor" in state:
        both = LowRankAndNeighboursInverse.from_state_dict(state, dtype, size)
        return both, NystroemControl.from_state_dict(both, state, dtype) if "control_b" in state else None
    if "neighbours_index" in state:
        sparse = SparseInverse.from_state_dict(state, dtype, size)
        return sparse, NeighbourControl(sparse) if "control_of_neighbours" in state else None
    if "scale" in state:
        return Scaled.from_state_dict(state, dtype, size), None
    low_rank = LowRank.from_state_dict(state, dtype, group, size)
    return low_rank, NystroemControl.from_state_dict(low_rank, state, dtype) if "control_b" in state else None
