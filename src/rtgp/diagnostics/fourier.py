"""Whether Fourier features could stand for the kernel of a subject: its effective dimension tells."""

from __future__ import annotations

import torch

from rtgp.diagnostics.subject import Subject
from rtgp.diagnostics.system import SubjectSystem
from rtgp.errors import UnsupportedModelError
from rtgp.estimators import draw_probes
from rtgp.kernels import read_covariance
from rtgp.kernels.spectral import components_of
from rtgp.objectives.fourier import feature_columns
from rtgp.objectives.fourier_limit import FourierLimit
from rtgp.preconditioners import LowRank, PivotedCholesky
from rtgp.preconditioners.pivoted_cholesky import factor_of
from rtgp.solvers import Output, WhitenedSystem, conjugate_gradients
from rtgp.truncation import fixed

_PROBES = 4  # one sees d_eff up to a standard deviation of sqrt(2 d_eff): few are enough
_TOLERANCE = 3e-2  # error ratio at which a column ends: the quadratic form's own error goes with its square
_CAP = 1000


def effective_dimension(system: WhitenedSystem, seed: int) -> float:
    """d_eff = tr(K (K + noise)^-1) = n - tr(A^-1), by random signs z: E[z^T A^-1 z] = tr(A^-1)."""
    generator = torch.Generator().manual_seed(seed)
    preconditioner = LowRank(factor_of(system, PivotedCholesky(), _PROBES, generator), system.dtype)
    n, like = system.size, (system.dtype, system.device)
    z = draw_probes("rademacher", n, _PROBES, preconditioner, generator, *like).whitened
    run = conjugate_gradients(system.matmul, z, fixed(_CAP), [Output(0, None)], preconditioner, tolerance=_TOLERANCE)
    inverse = (run.gamma * run.squares[:-1]).sum(0)  # z^T A^-1 z, the sum of CG's increments
    return n - float(inverse.mean())


def fourier_limit(subject: Subject, of: SubjectSystem, seed: int) -> FourierLimit | None:
    """For as many features as RFF() would take; None: the kernel has no known spectral density."""
    try:
        components = components_of(read_covariance(subject.model.forward(subject.X).lazy_covariance_matrix))
    except UnsupportedModelError:
        return None
    n = of.system.size
    return FourierLimit(n, effective_dimension(of.system, seed), feature_columns(None, n, len(components)))
