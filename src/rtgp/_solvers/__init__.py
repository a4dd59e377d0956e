"""Linear algebra: the system in units of its noise, conjugate gradients as a series, Lanczos quadrature, Cholesky."""

from rtgp._solvers.cg import Output, conjugate_gradients
from rtgp._solvers.iteration import Whitening
from rtgp._solvers.recordings import Recordings
from rtgp._solvers.result import CGResult, CGStatus
from rtgp._solvers.system import NoiseUnits

__all__ = [
    "CGResult",
    "CGStatus",
    "NoiseUnits",
    "Output",
    "Recordings",
    "Whitening",
    "conjugate_gradients",
]
