"""Samples of the posterior that are functions (Matheron's rule, Wilson et al. 2020): drawn once, asked anywhere.

    f(x) + K(x, X) (K + D)^-1 (y - f(X) - e),    e ~ N(0, D),

with f a draw of the prior. The second term is exact and takes one solve for each path, whatever is asked later. The
first stands for the prior by Fourier features of its kernel, cos and sin of random frequencies: f is a function, its
covariance is right in the mean over frequencies, and off by about 1 / sqrt(2 m) of the prior's variance with m of them.
That error counts away from the data, where the prior does; `Paths.prior_error` has it as measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._kernels.spectral import Component, components_of, draw_frequencies
from rtgp._objectives.reading import own_data
from rtgp.errors import InputError, RTGPError
from rtgp.operators._protocol import tiles
from rtgp.posterior import _units as units
from rtgp.posterior._checks import check_new_inputs
from rtgp.posterior._path_solver import CachedPathSolver, PathSolver
from rtgp.posterior._prior import evaluating
from rtgp.posterior._sampling import PathSettings, gaussian
from rtgp.posterior._tape import cross_product, isolated, needs_tape

Solver = PathSolver | CachedPathSolver


@dataclass(frozen=True)
class _PriorPaths:
    """f(x) = sum_t sqrt(scale_t / m_t) sum_i a_i cos(omega_i z) + b_i sin(omega_i z), z relative to the first point."""

    frequencies: tuple[Tensor, ...]  # (d_t, m_t) for each component
    coefficients: tuple[Tensor, ...]  # (2 m_t, paths), standard normal

    def at(self, form: KernelForm, rows: slice, own: Tensor | None = None) -> Tensor:
        """The paths at rows of a form, (rows, paths); with own (rows,), the path that each row takes: (rows,)."""
        parts = []
        for component, omega, drawn in zip(components_of(form), self.frequencies, self.coefficients, strict=True):
            features = _features(component, omega, rows)
            parts.append(features @ drawn if own is None else (features * drawn.T[own]).sum(1))
        return torch.stack(parts).sum(0)

    def covariance(self, form: KernelForm, rows: slice) -> Tensor:
        """The one between rows of a form that the features stand for."""
        found = [_features(one, omega, rows) for one, omega in zip(components_of(form), self.frequencies, strict=True)]
        return torch.stack([features @ features.T for features in found]).sum(0)


def _features(component: Component, omega: Tensor, rows: slice) -> Tensor:
    """(rows, 2 m), float64. Relative to the first training point: forms of more points have other centres."""
    z = component.z
    phases = (z[rows] - z[0]) @ omega
    return torch.cat([phases.cos(), phases.sin()], dim=1) * (component.scale / omega.shape[1]).sqrt()


class Paths:
    """Functions drawn from a posterior; made by `Posterior.paths`, of the model as it was then.

    `prior_error` is how far the features are from the prior: the root mean square error of their covariance between
    some training points, in units of the prior's variance. `count` is the number of paths.

    Parameters
    ----------
    model : gpytorch.models.ExactGP
        The model they are drawn from.
    likelihood : gpytorch likelihood
        Its likelihood.
    solver : PathSolver or CachedPathSolver
        What has solved for the weights.
    drawn : _PriorPaths
        The paths of the prior.
    weights : Tensor
        (K + D)^-1 (y - f - e) of each path, (n, paths).
    error : float
        The stated error of the prior.

    Examples
    --------
    >>> import numpy as np, torch, rtgp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> gp = rtgp.GPRegressor(standardize=False, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> paths = rtgp.posterior(gp.model_, gp.likelihood_).paths(4, torch.Generator().manual_seed(0))
    >>> paths(torch.rand(2, 3, 1)).shape, paths.each(torch.rand(4, 5, 1)).shape
    (torch.Size([4, 2, 3]), torch.Size([4, 5]))
    >>> paths.prior_error < 0.05
    True
    """

    def __init__(
        self, model: Any, likelihood: Any, solver: Solver, drawn: _PriorPaths, weights: Tensor, error: float
    ) -> None:
        self._model, self._likelihood = model, likelihood
        self._prior, self._snapshot = solver.prior, solver.snapshot  # not the factor, nor the stored kernel
        self._drawn, self._weights = drawn, weights  # (n, paths)
        self.count, self.prior_error = weights.shape[1], error

    def __call__(self, X: Tensor) -> Tensor:
        """All paths at the same points, differentiable in X where it requires a gradient.

        Parameters
        ----------
        X : Tensor
            New points, (..., m, d).

        Returns
        -------
        Tensor
            (paths, ..., m).
        """

        def compute(form: KernelForm, new: slice) -> Tensor:
            n = new.start
            return (self._drawn.at(form, new) + cross_product(form, n, self._weights)).T

        return self._computed(X, compute, lambda flat, lead: flat.reshape(self.count, *lead))

    def each(self, X: Tensor) -> Tensor:
        """Every path at points of its own, path s at X[..., s, :, :].

        Parameters
        ----------
        X : Tensor
            A set of points for each path, (..., paths, m, d).

        Returns
        -------
        Tensor
            (..., paths, m).
        """
        if not isinstance(X, Tensor) or X.ndim < 3 or X.shape[-3] != self.count:
            shape = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
            raise InputError(
                f"Expected points of shape (..., {self.count}, m, d), a set for each of the {self.count} paths. Got "
                f"{shape}: call the paths themselves to have all of them at all points."
            )

        def compute(form: KernelForm, new: slice) -> Tensor:
            own = torch.arange(self.count, device=form.device)[:, None].expand(X.shape[-3:-1])
            own = own.expand(X.shape[:-1]).reshape(-1)
            return self._drawn.at(form, new, own) + cross_product(form, new.start, self._weights, own)

        return self._computed(X, compute, lambda flat, lead: flat.reshape(lead))

    def _computed(
        self,
        X: Tensor,
        compute: Callable[[KernelForm, slice], Tensor],
        shaped: Callable[[Tensor, torch.Size], Tensor],
    ) -> Tensor:
        taped = needs_tape(X)
        with evaluating(self._model), torch.set_grad_enabled(taped):
            if not self._snapshot.matches(self._model, self._likelihood):
                raise RTGPError(
                    "Expected the model that these paths were drawn from. It has changed since, in its parameters or "
                    "its training data: draw new paths."
                )
            X = check_new_inputs(X, own_data(self._model)[0].shape[1], batches=True)

            def at(x: Tensor) -> tuple[Tensor]:
                mean, form = self._prior.joint(x)
                n = form.size - x.shape[0]
                return (mean.double() + compute(form, slice(n, form.size)),)

            flat = isolated(at, X.flatten(0, -2))[0]
            result = units.values_of(self._model, shaped(flat, X.shape[:-1]), X)
            return result.to(X.device, own_data(self._model)[1].dtype)


def draw_paths(
    solver: Solver,
    model: Any,
    likelihood: Any,
    count: int,
    features: int | None,
    generator: torch.Generator | None,
    settings: PathSettings,
) -> Paths:
    """Within `evaluating(model)`."""
    prior = solver.prior
    form, n = prior.form, prior.form.size
    components = components_of(form)
    shares = _shares(features or settings.features, len(components))
    frequencies = tuple(
        draw_frequencies(one, m, generator, orthogonal=True) for one, m in zip(components, shares, strict=True)
    )
    coefficients = tuple(gaussian(2 * m, count, generator, form.device) for m in shares)
    drawn = _PriorPaths(frequencies, coefficients)
    values = torch.empty(n, count, dtype=torch.float64, device=form.device)
    for rows in tiles(slice(0, n), max(1, _NUMBERS // (2 * max(shares)))):
        values[rows] = drawn.at(form, rows)
    observed = values + prior.noise.sqrt()[:, None] * gaussian(n, count, generator, form.device)
    weights = solver.solve(prior.residual.double()[:, None] - observed)
    return Paths(model, likelihood, solver, drawn, weights, _error(form, drawn, settings.checked))


_NUMBERS = 2**23  # features that are held at once


def _shares(features: int, terms: int) -> list[int]:
    return [max(1, len(range(t, features, terms))) for t in range(terms)]


def _error(form: KernelForm, drawn: _PriorPaths, checked: int) -> float:
    rows = slice(0, min(checked, form.size))
    exact = form.block(rows, rows).double()
    return float((drawn.covariance(form, rows) - exact).square().mean().sqrt() / exact.diagonal().mean())
