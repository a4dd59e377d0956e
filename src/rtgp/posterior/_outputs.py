"""Predictions of several outputs that share one kernel and noise: one factor or preconditioner, a mean for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from rtgp.errors import UnsupportedModelError
from rtgp.operators import group_for
from rtgp.posterior import _sampling as sampling
from rtgp.posterior._cache import PredictionCache
from rtgp.posterior._marginal import check_count
from rtgp.posterior._paths import Paths
from rtgp.posterior._predict import Posterior
from rtgp.posterior._tape import needs_tape


class OutputsPosterior(Posterior):
    """Made by `rtgp.posterior` of a model whose forward returns `rtgp.SharedOutputs`.

    Means are (t, m) and samples (n, t, m). The variance (m,) and the covariance (m, m) are those of each output, and
    come once.
    """

    def _computed(
        self, X: Tensor, compute: Callable[[PredictionCache, Tensor], Tensor], transformed: bool = False
    ) -> Tensor:
        if isinstance(X, Tensor) and (X.ndim > 2 or needs_tape(X)):
            raise UnsupportedModelError(
                "Expected points (m, d) without a gradient for a model of several outputs. Got "
                f"{tuple(X.shape)}{', which requires one' if needs_tape(X) else ''}: make a model for each output."
            )
        return super()._computed(X, compute, transformed)

    def paths(self, n: int, generator: torch.Generator | None = None, *, features: int | None = None) -> Paths:
        """Refused: there are none of several outputs."""
        raise UnsupportedModelError("Expected a model of one output for paths. Make a model for each output.")

    def distribution(
        self, X: Tensor, include_noise: bool = False, *, noise: Tensor | float | None = None
    ) -> MultivariateNormal:
        """Refused: one covariance belongs to several means."""
        raise UnsupportedModelError(
            "Expected a model of one output for a distribution. Take .mean, and .covariance, which is that of each."
        )

    def mean(self, X: Tensor) -> Tensor:
        """The posterior means at X (m, d), (t, m)."""
        return self._computed(X, lambda cache, x: _means(cache, x).T)

    def sample(self, X: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n samples of the functions at X (m, d), (n, t, m), for moderate m; the outputs are independent."""
        check_count(n)

        def compute(cache: PredictionCache, x: Tensor) -> Tensor:
            means, t = _means(cache, x), cache.prior.residual.shape[1]
            covariance = _covariance(cache, x)
            settings = cache.settings.internal.sampling
            drawn = sampling.gaussian(len(x), n * t, generator, covariance.device)
            drawn = (sampling.root(covariance, settings) @ drawn).reshape(len(x), n, t)
            return (means.to(covariance)[:, None] + drawn).permute(1, 2, 0)

        return self._computed(X, compute)


def _means(cache: PredictionCache, X: Tensor) -> Tensor:
    """(m, t)"""
    group = group_for(cache.settings.operator)
    own = X[group.own(X.shape[0])]  # the new points are divided among the ranks, where there are some
    result = torch.empty(len(own), cache.weights.shape[1], dtype=cache.system.dtype, device=cache.system.device)
    for piece, prior, form in cache.prior.slabs(own):
        result[piece] = prior + cache.cross(form).matmul(cache.weights)
    return group.gather_rows(result, X.shape[0]).to(X.device)


def _covariance(cache: PredictionCache, X: Tensor) -> Tensor:
    """(m, m), of each output, by exact solves whatever `variance` was chosen."""
    n = cache.system.size
    sampling.check_moderate(n, X.shape[0], cache.settings.internal.sampling)
    form = cache.prior.joint(X)[1]
    new = slice(n, form.size)
    b = cache.system.scaled(form.block(slice(0, n), new))
    result = form.block(new, new).double().sub_(cache.solver.gram(b, form.diagonal()[n:]))
    return (result + result.T) / 2
