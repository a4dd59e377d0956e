"""Preconditioners P = F F^T: what they offer, their kinds, and the policy that chooses among them."""

from rtgp._preconditioners.low_rank import LowRank
from rtgp._preconditioners.pivoted_cholesky import PivotedCholesky
from rtgp._preconditioners.protocol import Control, Identity, Preconditioner
from rtgp._preconditioners.settings import Automatic, LowRankAndNeighbours, Neighbours, PreconditionerSettings
from rtgp._preconditioners.sparse_inverse import SparseInverse

__all__ = [
    "Automatic",
    "Control",
    "Identity",
    "LowRank",
    "LowRankAndNeighbours",
    "Neighbours",
    "PivotedCholesky",
    "Preconditioner",
    "PreconditionerSettings",
    "SparseInverse",
]
