"""A word of warning where Fourier features cannot stand for the kernel that is to be learned."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from rtgp._kernels.frequency_grid import grid_spectrum
from rtgp._kernels.spectral import components_of
from rtgp._methods import RFF, Method
from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives.fourier import feature_columns
from rtgp._objectives.fourier_limit import FourierLimit
from rtgp.errors import ApproximationWarning
from rtgp.training._problem import Problem


@dataclass(frozen=True)
class FeatureSettings:
    """When Fourier features are warned of. Chosen, not fitted.

    Attributes
    ----------
    coarse : float
        Part of the noise that a grid of frequencies may leave out of the diagonal of K. Chosen, not fitted.
    visible : float
        Bias of log|K| by random features, in nats per point: see `FourierLimit`.
    """

    coarse: float = 0.05
    visible: float = FourierLimit.visible


DEFAULT = FeatureSettings()


def warn_of_features(problem: Problem, method: Method, seed: int, settings: FeatureSettings = DEFAULT) -> bool:
    """Warn where RFF or SS-RFF cannot represent the kernel at the present hyperparameters. Returned is whether it did
    so.
    """
    fourier = method.fourier
    if fourier is None:
        return False
    probe = RFF(fourier.features, fourier.frequencies, fourier.redraw)
    if probe.frequencies == "grid":
        words = _too_coarse(problem, probe, settings)
    else:
        words = _too_few(problem, probe, seed, settings)
    if words:
        warnings.warn(words, ApproximationWarning, stacklevel=4)
    return bool(words)


def _too_few(problem: Problem, probe: RFF, seed: int, settings: FeatureSettings) -> str:
    """Random features. The effective dimension is that of the features themselves, from one evaluation without a
    gradient: somewhat too small, least so where they suffice."""
    generator = torch.Generator().manual_seed(seed)  # its own: training draws what it would have drawn
    mll = MarginalLogLikelihood(problem.likelihood, problem.model, probe, generator)
    with torch.no_grad():
        mll(problem.output(), problem.y)
    assert mll.last is not None
    limit = FourierLimit(problem.rows, mll.last.effective_dimension, mll.last.features, settings.visible)
    words = limit.words()
    return f"{words[0].upper()}{words[1:]}." if limit.large else ""


def _too_coarse(problem: Problem, probe: RFF, settings: FeatureSettings) -> str:
    """A grid: by what it leaves out of the kernel's variance."""
    mll = MarginalLogLikelihood(problem.likelihood, problem.model, probe)
    with torch.no_grad():
        batch = mll._read(problem.output(), problem.y)
        components = components_of(batch.form)
        columns = feature_columns(probe.features, problem.rows, len(components))
        held = float(grid_spectrum(components, columns // 2).weights(columns // 2).sum())
        missing = sum(float(one.scale) for one in components) - held
        noise = float(batch.noise.mean())
    if missing <= settings.coarse * noise:
        return ""
    return (
        f"A grid of {columns} features is too coarse: it leaves a variance of {missing:.2g} out of the kernel, beside "
        f"a noise of {noise:.2g}. Use more features, or method='rr-cg'."
    )
