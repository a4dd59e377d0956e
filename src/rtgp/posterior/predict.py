"""Predictions from a trained exact Gaussian process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rtgp.errors import ConvergenceError, NotPositiveDefiniteError
from rtgp.memory import enough_memory
from rtgp.objectives.reading import check_model, own_data
from rtgp.operators import CrossOperator, group_for
from rtgp.operators.protocol import tiles
from rtgp.posterior import sampling
from rtgp.posterior.checks import check_new_inputs
from rtgp.posterior.marginal import added_noise, check_count
from rtgp.posterior.prior import evaluating
from rtgp.posterior.ready import Ready, make_ready
from rtgp.posterior.settings import PosteriorReport, PosteriorSettings
from rtgp.posterior.solver import VarianceSolver, columns_within

_TILE = {"cpu": 1024, "cuda": 4096}


class Posterior:
    """Made by `rtgp.posterior`. It follows its model: after a change to a parameter or to the training data, the next
    call computes everything anew."""

    def __init__(self, model: Any, likelihood: Any, settings: PosteriorSettings) -> None:
        check_model(model, likelihood, "rtgp.posterior(model, likelihood)")
        self.model, self.likelihood, self.settings = model, likelihood, settings
        self._ready: Ready | None = None
        with evaluating(model):
            self._now()

    def release(self) -> None:
        """Free what predictions are made from: the factor or the stored kernel. The next call computes it anew."""
        self._ready = None

    @property
    def report(self) -> PosteriorReport:
        """How it was computed, for the model as it is now."""
        with evaluating(self.model):
            return self._now().report()

    def mean(self, X: Tensor) -> Tensor:
        """The posterior mean at X (m, d), (m,)."""
        return self._computed(X, _mean)

    def variance(self, X: Tensor, include_noise: bool = False, *, noise: Tensor | float | None = None) -> Tensor:
        """The posterior variance of the function at X (m, d), or of new observations there, (m,).

        noise: for a FixedNoiseGaussianLikelihood, the known variances of the new observations' noise.
        """

        def compute(now: Ready, x: Tensor) -> Tensor:
            added = added_noise(self.likelihood, include_noise, noise, x.shape[0])
            return _variance(now, x) + added.to(x.device)

        return self._computed(X, compute)

    def covariance(self, X: Tensor, include_noise: bool = False, *, noise: Tensor | float | None = None) -> Tensor:
        """The joint posterior covariance at X (m, d), (m, m), for moderate m; `noise` as for the variance."""

        def compute(now: Ready, x: Tensor) -> Tensor:
            added = added_noise(self.likelihood, include_noise, noise, x.shape[0])
            result = _covariance(now, x, now.variance_solver())
            result.diagonal().add_(added.to(result))
            return result

        return self._computed(X, compute)

    def sample(self, X: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n samples of the function at X (m, d), (n, m), for moderate m; exact whatever `variance` was chosen.

        generator: where random numbers come from; None: torch's default generator.
        """
        check_count(n)
        return self._computed(X, lambda now, x: _sample(now, x, n, generator))

    @enough_memory("The prediction", "Predict at fewer points at a time; a covariance needs the square of their number")
    def _computed(self, X: Tensor, compute: Callable[[Ready, Tensor], Tensor]) -> Tensor:
        """`compute` with the model as it is now and checked inputs; once more in float64 where float32 fails."""
        with evaluating(self.model):
            now = self._now()
            X = check_new_inputs(X, now.prior.x.shape[1])
            result: Tensor | None = None
            try:
                result = compute(now, X)
            except (ConvergenceError, NotPositiveDefiniteError):
                if now.system.dtype == torch.float64:
                    raise
            if result is None:  # not within the clause above, where the error holds what it came from
                self._ready = now = None  # type: ignore[assignment]  # its memory, before more is taken
                self._ready = make_ready(self.model, self.likelihood, self.settings, allow_float32=False)
                result = compute(self._ready, X)
            return result.to(X.device, own_data(self.model)[1].dtype)

    def _now(self) -> Ready:
        """Made anew if the model has changed. Within `evaluating`."""
        if self._ready is None or not self._ready.snapshot.matches(self.model, self.likelihood):
            self._ready = None  # first: an error must not leave the old one, nor the old one's memory
            self._ready = make_ready(self.model, self.likelihood, self.settings, allow_float32=True)
        return self._ready


def _mean(now: Ready, X: Tensor) -> Tensor:
    n, tile = now.system.size, _TILE.get(now.system.device.type, 1024)
    group = group_for(now.settings.operator)
    own = X[group.own(X.shape[0])]  # the new points are divided among the ranks, where there are some
    result = torch.empty(own.shape[0], dtype=now.system.dtype, device=now.system.device)
    for piece, prior, form in now.prior.slabs(own):
        cross = CrossOperator(form, slice(n, form.size), slice(0, n), tile)
        result[piece] = prior + cross.matmul(now.weights)[:, 0]
    return group.gather_rows(result, X.shape[0]).to(X.device)


def _variance(now: Ready, X: Tensor) -> Tensor:
    n, solver = now.system.size, now.variance_solver()
    result = torch.empty(X.shape[0], dtype=now.system.dtype, device=X.device)
    for piece, _, form in now.prior.slabs(X):
        prior, found = form.diagonal()[n:].double(), []
        for test in tiles(slice(n, form.size), columns_within(n)):
            b = now.system.whiten(form.block(slice(0, n), test))  # (n, k)
            found.append(solver.explained(b, prior[test.start - n : test.stop - n]))
        result[piece] = (prior - torch.cat(found)).clamp_min_(0.0).to(result)
    return result


def _covariance(now: Ready, X: Tensor, solver: VarianceSolver) -> Tensor:
    n = now.system.size
    sampling.check_moderate(n, X.shape[0])
    form = now.prior.joint(X)[1]
    new = slice(n, form.size)
    b = now.system.whiten(form.block(slice(0, n), new))
    result = form.block(new, new).double().sub_(solver.gram(b, form.diagonal()[n:]))
    result = (result + result.T) / 2
    result.diagonal().clamp_min_(0.0)
    return result


def _sample(now: Ready, X: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    if now.system.size + X.shape[0] > sampling.JOINT_LIMIT:
        covariance = _covariance(now, X, now.solver)
        mean = _mean(now, X).to(covariance)
        drawn = sampling.root(covariance) @ sampling.gaussian(X.shape[0], count, generator, covariance.device)
    else:
        mean, joint = now.prior.joint(X, torch.float64)
        drawn = sampling.matheron(joint, now.prior.noise, now.prior.residual, now.solve, count, generator)
    return (mean[:, None] + drawn).T
