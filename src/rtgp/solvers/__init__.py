"""Linear algebra: the system in units of its noise, conjugate gradients as a series, Lanczos quadrature, Cholesky."""

from rtgp.solvers.cg import Output, conjugate_gradients
from rtgp.solvers.iteration import Whitening
from rtgp.solvers.recordings import Recordings
from rtgp.solvers.result import CGResult, CGStatus
from rtgp.solvers.system import WhitenedSystem

__all__ = [
    "CGResult",
    "CGStatus",
    "Output",
    "Recordings",
    "WhitenedSystem",
    "Whitening",
    "conjugate_gradients",
]
