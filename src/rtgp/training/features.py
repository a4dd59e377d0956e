"""A word of warning where Fourier features cannot stand for the kernel that is to be learned."""

from __future__ import annotations

import warnings

import torch

from rtgp.errors import ApproximationWarning
from rtgp.kernels.frequency_grid import grid_spectrum
from rtgp.kernels.spectral import components_of
from rtgp.methods import RFF, SSRFF, Method
from rtgp.mll import MarginalLogLikelihood
from rtgp.objectives.fourier import feature_columns
from rtgp.objectives.fourier_limit import FourierLimit
from rtgp.training.problem import Problem

_COARSE = 0.05  # part of the noise that a grid of frequencies may leave out of the diagonal of K


def warn_of_features(problem: Problem, method: Method, seed: int) -> bool:
    """Say so where RFF or SS-RFF will not do at the present hyperparameters; whether it was said."""
    if not isinstance(method, (RFF, SSRFF)):
        return False
    if isinstance(method, RFF) and method.frequencies == "grid":
        words = _too_coarse(problem, method)
    else:
        words = _too_few(problem, method, seed)
    if words:
        warnings.warn(words, ApproximationWarning, stacklevel=4)
    return bool(words)


def _too_few(problem: Problem, method: RFF | SSRFF, seed: int) -> str:
    """Random features. The effective dimension is that of the features themselves, from one evaluation without a
    gradient: somewhat too small, least so where they suffice."""
    probe = method if isinstance(method, RFF) else RFF()
    generator = torch.Generator().manual_seed(seed)  # its own: training draws what it would have drawn
    mll = MarginalLogLikelihood(problem.likelihood, problem.model, probe, generator)
    with torch.no_grad():
        mll(problem.model(problem.X), problem.y)
    assert mll.last is not None
    limit = FourierLimit(problem.n, mll.last.effective_dimension, mll.last.features)
    words = limit.words()
    return f"{words[0].upper()}{words[1:]}." if limit.large else ""


def _too_coarse(problem: Problem, method: RFF) -> str:
    """A grid: by what it leaves out of the kernel's variance."""
    mll = MarginalLogLikelihood(problem.likelihood, problem.model, method)
    with torch.no_grad():
        batch = mll._read(problem.model(problem.X), problem.y)
        components = components_of(batch.form)
        columns = feature_columns(method.features, problem.n, len(components))
        held = float(grid_spectrum(components, columns // 2).weights(columns // 2).sum())
        missing = sum(float(one.scale) for one in components) - held
        noise = float(batch.noise.mean())
    if missing <= _COARSE * noise:
        return ""
    return (
        f"A grid of {columns} features is too coarse: it leaves a variance of {missing:.2g} out of the kernel, beside "
        f"a noise of {noise:.2g}. Use more features, or method='rr-cg'."
    )
