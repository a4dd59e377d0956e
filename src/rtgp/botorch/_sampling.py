"""Thompson sampling: BoTorch's Matheron paths of a wrapped model, and joint samples at very many points, are our paths.

Random numbers come from torch's default generator, as everywhere in BoTorch (`torch.manual_seed`).
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.posteriors.posterior import Posterior as BoTorchPosterior
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from gpytorch.models import ExactGP
from torch import Tensor

from rtgp.botorch._fantasies import broadcast
from rtgp.errors import UnsupportedModelError
from rtgp.posterior import Paths, Posterior


class SolvedPaths(SamplePath):
    """Paths of a posterior, as BoTorch evaluates them: X (..., [sample_shape], q, d) against the sample shape."""

    def __init__(self, paths: Paths, sample_shape: torch.Size) -> None:
        super().__init__()
        self.paths, self.sample_shape = paths, sample_shape
        self.input_transform = self.output_transform = None  # the paths have them inside

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Path s at x[..., s, :, :] where x has a set for each, and all paths at each set where it has one for all."""
        shape = self.sample_shape
        lead = broadcast(x.shape[:-2], shape)
        rest, sets = lead[: len(lead) - len(shape)], x.shape[:-2][max(0, x.ndim - 2 - len(shape)) :]
        if all(size == 1 for size in sets):  # all paths at the same points
            points = x.reshape(*rest, *x.shape[-2:])
            values = self.paths(points).movedim(0, -2)  # (*rest, paths, q)
        else:
            points = x.expand(*lead, *x.shape[-2:]).reshape(*rest, shape.numel(), *x.shape[-2:])
            values = self.paths.each(points)
        return values.reshape(*lead, x.shape[-2])

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing: no model of ours is an ensemble."""


def register() -> None:
    """Make BoTorch's `draw_matheron_paths` and `get_matheron_path_model` know our models.

    Their paths are ours at any number of points. At 5,000, BoTorch's own take 12 GiB to optimise 64 of them. They stay
    where a factor is affordable and ours are not to be had: batches, and kernels whose spectral density is not known.
    """
    from rtgp.botorch._model import SolvedModel

    exact = DrawMatheronPaths.dispatch(ExactGP)

    def draw(model: SolvedModel, *, sample_shape: torch.Size, **how: Any) -> SamplePath:
        try:
            return SolvedPaths(model.draw_paths(max(1, sample_shape.numel())), sample_shape)
        except UnsupportedModelError:
            if model.by_solver:
                raise
        found: SamplePath = exact(model, sample_shape=sample_shape, **how)
        return found

    DrawMatheronPaths.register(SolvedModel)(draw)


class PathwisePosterior(BoTorchPosterior):
    """At so many points that their joint covariance costs too much: mean and variance of each, and samples by paths."""

    def __init__(self, solver: Posterior, X: Tensor) -> None:
        self._solver, self._X = solver, X

    @property
    def device(self) -> torch.device:
        return self._X.device

    @property
    def dtype(self) -> torch.dtype:
        return self._X.dtype

    @property
    def mean(self) -> Tensor:
        return self._solver.mean(self._X)[..., None]

    @property
    def variance(self) -> Tensor:
        return self._solver.variance(self._X)[..., None]

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return sample_shape + self._X.shape[:-1] + torch.Size([1])

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """Samples that are functions, at these points."""
        shape = torch.Size([1]) if sample_shape is None else sample_shape
        found = self._solver.paths(max(1, shape.numel()))(self._X)
        return found.reshape(*shape, *self._X.shape[:-1], 1)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        raise UnsupportedModelError(
            f"Expected fewer points for samples from given normal numbers. Got {self._X.shape[-2]:,} in one set: a "
            "sampler with base samples needs their joint covariance. Draw paths (MaxPosteriorSampling, "
            "get_matheron_path_model), or take fewer points, such as the best of X_baseline."
        )
