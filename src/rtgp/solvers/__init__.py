"""Linear algebra: conjugate gradients as a series, preconditioners, Lanczos quadrature, Cholesky."""

from rtgp.solvers.cg import Output, conjugate_gradients
from rtgp.solvers.preconditioner import IdentityPreconditioner, LowRankPlusIdentity, PivotedCholesky, Preconditioner
from rtgp.solvers.recordings import Recordings
from rtgp.solvers.result import CGResult, CGStatus
from rtgp.solvers.system import WhitenedSystem

__all__ = [
    "CGResult",
    "CGStatus",
    "IdentityPreconditioner",
    "LowRankPlusIdentity",
    "Output",
    "PivotedCholesky",
    "Preconditioner",
    "Recordings",
    "WhitenedSystem",
    "conjugate_gradients",
]
