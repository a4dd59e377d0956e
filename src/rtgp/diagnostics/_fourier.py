"""Whether Fourier features could stand for the kernel of a subject: its effective dimension tells."""

from __future__ import annotations

import torch

from rtgp._kernels import read_covariance
from rtgp._kernels.spectral import components_of
from rtgp._objectives.fourier import feature_columns
from rtgp._objectives.fourier_limit import FourierLimit
from rtgp._preconditioners import LowRank, PivotedCholesky
from rtgp._preconditioners.pivoted_cholesky import factor_of
from rtgp._solvers import NoiseUnits, Output, conjugate_gradients
from rtgp._traces import draw_probes
from rtgp.diagnostics._settings import DEFAULT, FourierSettings
from rtgp.diagnostics._subject import Subject, SubjectSystem
from rtgp.errors import UnsupportedModelError
from rtgp.truncation import fixed


def effective_dimension(system: NoiseUnits, seed: int, settings: FourierSettings = DEFAULT.fourier) -> float:
    """d_eff = tr(K (K + noise)^-1) = n - tr(A^-1), by random signs z: E[z^T A^-1 z] = tr(A^-1)."""
    generator, count = torch.Generator().manual_seed(seed), settings.probes
    preconditioner = LowRank(factor_of(system, PivotedCholesky(), count, generator), system.dtype)
    n, like = system.size, (system.dtype, system.device)
    z = draw_probes("rademacher", n, count, preconditioner, generator, *like).whitened
    ends = fixed(settings.most_iterations)
    run = conjugate_gradients(system.matmul, z, ends, [Output(0, None)], preconditioner, tolerance=settings.tolerance)
    inverse = (run.gamma * run.squares[:-1]).sum(0)  # z^T A^-1 z, the sum of CG's increments
    return n - float(inverse.mean())


def fourier_limit(
    subject: Subject, of: SubjectSystem, seed: int, settings: FourierSettings = DEFAULT.fourier
) -> FourierLimit | None:
    """For as many features as RFF() would take; None: the kernel has no known spectral density."""
    try:
        components = components_of(read_covariance(subject.model.forward(subject.X).lazy_covariance_matrix))
    except UnsupportedModelError:
        return None
    n = of.system.size
    dimension = effective_dimension(of.system, seed, settings)
    return FourierLimit(n, dimension, feature_columns(None, n, len(components)), settings.visible)
