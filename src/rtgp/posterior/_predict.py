"""Predictions from a trained exact Gaussian process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from rtgp._memory import enough_memory
from rtgp._objectives.reading import check_model, check_one_output, own_data
from rtgp._precision import Precision, decide_after, in_float64
from rtgp._preconditioners.nearest import coordinates
from rtgp.errors import RTGPError
from rtgp.operators import group_for
from rtgp.operators._protocol import tiles
from rtgp.posterior import _sampling as sampling
from rtgp.posterior import _units as units
from rtgp.posterior._batches import joint_moments, mean_of_batches, normal_samples
from rtgp.posterior._cache import PredictionCache, make_cache
from rtgp.posterior._checks import check_new_inputs
from rtgp.posterior._conjugate_gradients import KrylovSolver
from rtgp.posterior._marginal import added_noise, check_count
from rtgp.posterior._near_variance import NearVarianceSettings, near_variances
from rtgp.posterior._notebook import as_table
from rtgp.posterior._path_solver import CachedPathSolver, PathSolver
from rtgp.posterior._paths import Paths, draw_paths
from rtgp.posterior._prior import evaluating
from rtgp.posterior._settings import PosteriorReport, PosteriorSettings
from rtgp.posterior._solver import VarianceSolver, columns_within
from rtgp.posterior._tape import needs_tape


class Posterior:
    """Predictions of an exact Gaussian process; made by `rtgp.posterior`.

    It follows its model: after a change to a parameter or to the training data, the next call computes everything
    again.

    Parameters
    ----------
    model : gpytorch.models.ExactGP
        A trained model.
    likelihood : gpytorch likelihood
        A `GaussianLikelihood` or a `FixedNoiseGaussianLikelihood`.
    settings : PosteriorSettings
        How to compute.
    start : Tensor, optional
        Weights (n, 1) that may be near the solution, where the first solve by CG begins.
    at_once : bool
        Whether to compute now what predictions are made from, and not when the first one is asked for.

    Examples
    --------
    >>> import numpy as np, torch, rtgp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> gp = rtgp.GPRegressor(standardize=False, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> prediction = rtgp.posterior(gp.model_, gp.likelihood_)
    >>> new = torch.tensor([[0.25], [0.75]])
    >>> prediction.mean(new).shape, prediction.variance(new).shape, prediction.covariance(new).shape
    (torch.Size([2]), torch.Size([2]), torch.Size([2, 2]))
    >>> prediction.sample(new, 3, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    >>> prediction.report.method
    'cholesky'
    """

    def __init__(
        self,
        model: Any,
        likelihood: Any,
        settings: PosteriorSettings,
        *,
        start: Tensor | None = None,
        at_once: bool = True,
    ) -> None:
        check_model(model, likelihood, "rtgp.posterior(model, likelihood)")
        check_one_output(model, likelihood, "rtgp.posterior")
        self.model, self.likelihood, self.settings = model, likelihood, settings
        self._cache: PredictionCache | None = None
        self._start = start
        self._solver_of_paths: PathSolver | None = None
        if at_once:
            with evaluating(model):
                self._current()

    def release(self) -> None:
        """Free the factor or the stored kernel. The next call computes it again."""
        self._cache = self._solver_of_paths = None

    @property
    def report(self) -> PosteriorReport:
        """How the predictions are computed, as a PosteriorReport."""
        with evaluating(self.model):
            return self._current().report()

    @property
    def weights(self) -> Tensor:
        """The weights of the training points in the mean, (K + D)^-1 (y - m), (n, 1)."""
        with evaluating(self.model):
            return self._current().weights

    def moments_of_transformed(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance before BoTorch's outcome transform and after its input transform.

        That is what `model(X)` is in GPyTorch.

        Parameters
        ----------
        X : Tensor
            New points that have gone through the input transform, (..., m, d).

        Returns
        -------
        tuple of Tensor
            Mean (..., m) and covariance (..., m, m) in the units of the model's targets.
        """

        def compute(cache: PredictionCache, x: Tensor) -> Tensor:
            mean, covariance = joint_moments(cache, x, transformed=True)
            return torch.cat([mean[..., None], covariance], dim=-1)

        both = self._computed(X, compute, transformed=True)
        return both[..., 0], both[..., 1:]

    def _repr_html_(self) -> str:
        """For notebooks: what it stands on. Computes nothing."""
        return as_table(self.model, None if self._cache is None else self._cache.report())

    def mean(self, X: Tensor) -> Tensor:
        """The posterior mean, differentiable in X where it requires a gradient.

        Parameters
        ----------
        X : Tensor
            New points, (..., m, d).

        Returns
        -------
        Tensor
            The mean at each, (..., m).
        """

        def compute(cache: PredictionCache, x: Tensor) -> Tensor:
            mean = _mean(cache, x)
            if units.is_linear(self.model):
                return units.values_of(self.model, mean, x)
            return units.nonlinear(self.model, mean, _variance(cache, x).to(mean), x)[0]

        return self._computed(X, compute)

    def variance(self, X: Tensor, include_noise: bool = False, *, noise: Tensor | float | None = None) -> Tensor:
        """The posterior variance of the function, or of new observations.

        Parameters
        ----------
        X : Tensor
            New points, (..., m, d).
        include_noise : bool
            Whether the variance is that of a new observation, noise included.
        noise : Tensor or float, optional
            For a `FixedNoiseGaussianLikelihood`, the known variances of the noise of the new observations, in
            the units of the model's targets.

        Returns
        -------
        Tensor
            The variance at each point, (..., m).
        """

        def compute(cache: PredictionCache, x: Tensor) -> Tensor:
            added = added_noise(self.likelihood, include_noise, noise, x.shape[-2])
            variance = _variance(cache, x) + added.to(x.device)
            mean = variance if units.is_linear(self.model) else _mean(cache, x).to(variance)
            return units.variance_of(self.model, mean, variance, x)

        return self._computed(X, compute)

    def covariance(self, X: Tensor, include_noise: bool = False, *, noise: Tensor | float | None = None) -> Tensor:
        """The joint posterior covariance of a moderate number of points.

        Parameters
        ----------
        X : Tensor
            New points, (..., m, d).
        include_noise : bool
            Whether the noise of new observations is added to the diagonal.
        noise : Tensor or float, optional
            For a `FixedNoiseGaussianLikelihood`, the known variances of the noise of the new observations.

        Returns
        -------
        Tensor
            The covariance of each set, (..., m, m).
        """

        def compute(cache: PredictionCache, x: Tensor) -> Tensor:
            added = added_noise(self.likelihood, include_noise, noise, x.shape[-2])
            if _is_plain(x):
                result = _covariance(cache, x, cache.variance_solver())
                result.diagonal().add_(added.to(result))
            else:
                result = joint_moments(cache, x)[1]
                result = result + torch.diag_embed(added.to(result).expand(result.shape[:-1]))
            return units.covariance_of(self.model, result, x)

        return self._computed(X, compute)

    def sample(self, X: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Joint samples of the function at a moderate number of points, exact whatever `variance` was chosen.

        Batches, and samples that are differentiable in X, are made of the root of their covariance: another draw than
        that of one plain set of points. `paths` gives samples that are functions.

        Parameters
        ----------
        X : Tensor
            New points, (..., m, d).
        n : int
            The number of samples.
        generator : torch.Generator, optional
            The source of random numbers. By default torch's own generator.

        Returns
        -------
        Tensor
            A sample in each row, (n, ..., m).
        """
        check_count(n)

        def compute(cache: PredictionCache, x: Tensor) -> Tensor:
            if _is_plain(x):
                found = _sample(cache, x, n, generator)
            else:
                settings = cache.settings.internal.sampling
                found = normal_samples(*joint_moments(cache, x), n, generator, settings)
            return units.values_of(self.model, found, x)

        return self._computed(X, compute)

    def paths(self, n: int, generator: torch.Generator | None = None, *, features: int | None = None) -> Paths:
        """n samples that are functions: they can be asked at any points, again and again, and differentiated.

        For any number of training points: the draw takes n solves, and no n x n factor beyond those that `method` has.
        The kernel must be stationary in the inputs or in learned features of them: RBF, Matern, sums and products.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator, optional
            Where random numbers come from. The same one gives the same functions. None: torch's default generator.
        features : int, optional
            Random frequencies that stand for the prior, 2,048 if left out. The update by the data is exact.

        Returns
        -------
        Paths
            `paths(X)` has all of them at X (..., m, d), `paths.each(X)` each at points of its own, and
            `paths.prior_error` says how far the features are from the prior's covariance.

        Examples
        --------
        >>> import gpytorch, rtgp, torch
        >>> from gpytorch.kernels import MaternKernel
        >>> class Model(gpytorch.models.ExactGP):
        ...     def __init__(self, x, y):
        ...         super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        ...         self.mean, self.kernel = gpytorch.means.ZeroMean(), MaternKernel()
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))
        >>> x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
        >>> model = Model(x, torch.sin(6 * x[:, 0])).double()
        >>> paths = rtgp.posterior(model, model.likelihood).paths(8, torch.Generator().manual_seed(0))
        >>> new = torch.rand(5, 3, 1, dtype=torch.float64, requires_grad=True)
        >>> paths(new).shape, paths(new).requires_grad
        (torch.Size([8, 5, 3]), True)
        """
        check_count(n)
        if features is not None:
            check_count(features, "features", "paths")
        with evaluating(self.model):
            settings = self.settings.internal.paths
            return draw_paths(self._path_solver(), self.model, self.likelihood, n, features, generator, settings)

    def distribution(
        self, X: Tensor, include_noise: bool = False, *, noise: Tensor | float | None = None
    ) -> MultivariateNormal:
        """Mean and covariance as GPyTorch's distribution, differentiable in X where it requires a gradient.

        Parameters
        ----------
        X : Tensor
            New points, (..., m, d).
        include_noise : bool
            Whether the noise of new observations is added to the diagonal.
        noise : Tensor or float, optional
            For a `FixedNoiseGaussianLikelihood`, the known variances of the noise of the new observations.

        Returns
        -------
        MultivariateNormal
            One for each set of points.
        """

        def compute(cache: PredictionCache, x: Tensor) -> Tensor:
            added = added_noise(self.likelihood, include_noise, noise, x.shape[-2])
            mean, covariance = joint_moments(cache, x)
            covariance = covariance + torch.diag_embed(added.to(covariance).expand(covariance.shape[:-1]))
            covariance = units.covariance_of(self.model, covariance, x)
            return torch.cat([units.values_of(self.model, mean, x)[..., None], covariance], dim=-1)

        both = self._computed(X, compute)
        return MultivariateNormal(both[..., 0], DenseLinearOperator(both[..., 1:]))

    @enough_memory("The prediction", "Predict at fewer points at a time; a covariance needs the square of their number")
    def _computed(
        self, X: Tensor, compute: Callable[[PredictionCache, Tensor], Tensor], transformed: bool = False
    ) -> Tensor:
        """`compute` with the model as it is now and checked inputs; once more in float64 where float32 fails.

        Autograd records where X requires a gradient, and only there.
        """
        taped = needs_tape(X)
        with evaluating(self.model), torch.set_grad_enabled(taped):
            cache = self._current()
            columns = cache.prior.x if transformed else own_data(self.model)[0]
            X = check_new_inputs(X, columns.shape[1], batches=True)
            result: Tensor | None = None
            precision: Precision | None = None
            try:
                result = compute(cache, X)
            except RTGPError as error:
                precision = decide_after(error, cache.system.dtype)
                if precision is None:
                    raise
            if result is None:  # not within the clause above, where the error holds what it came from
                self._cache = cache = None  # type: ignore[assignment]  # its memory, before more is taken
                self._cache = make_cache(self.model, self.likelihood, self.settings, precision)
                result = compute(self._cache, X)
            return result.to(X.device, own_data(self.model)[1].dtype)

    def _path_solver(self) -> PathSolver | CachedPathSolver:
        """That of predictions where there is one, or where it is a factor; else one for paths alone."""
        n, device = own_data(self.model)[0].shape[0], own_data(self.model)[1].device
        if self._cache is not None or self.settings.choose(n, device)[0] == "cholesky":
            return CachedPathSolver(self._current())
        held = self._solver_of_paths
        if held is None or not held.snapshot.matches(self.model, self.likelihood):
            held = self._solver_of_paths = None  # first: its memory
            held = self._solver_of_paths = PathSolver(self.model, self.likelihood, self.settings)
        return held

    def _current(self) -> PredictionCache:
        """Made again if the model has changed. Within `evaluating`."""
        if self._cache is None or not self._cache.snapshot.matches(self.model, self.likelihood):
            self._cache = None  # first: an error must not leave the old one, nor the old one's memory
            with torch.no_grad():
                start, self._start = self._start, None
                self._cache = make_cache(self.model, self.likelihood, self.settings, start=start)
        return self._cache


def _is_plain(X: Tensor) -> bool:
    """One set of points, and no gradient."""
    return X.ndim == 2 and not needs_tape(X)


def _mean(cache: PredictionCache, X: Tensor) -> Tensor:
    if needs_tape(X):
        return mean_of_batches(cache, X)
    return _plain_mean(cache, X.flatten(0, -2)).reshape(X.shape[:-1])


def _plain_mean(cache: PredictionCache, X: Tensor) -> Tensor:
    group = group_for(cache.settings.operator)
    own = X[group.own(X.shape[0])]  # the new points are divided among the ranks, where there are some
    result = torch.empty(own.shape[0], dtype=cache.system.dtype, device=cache.system.device)
    for piece, prior, form in cache.prior.slabs(own):
        result[piece] = prior + cache.cross(form).matmul(cache.weights)[:, 0]
    return group.gather_rows(result, X.shape[0]).to(X.device)


def _variance(cache: PredictionCache, X: Tensor) -> Tensor:
    if needs_tape(X):
        return joint_moments(cache, X[..., None, :])[1][..., 0, 0]
    return _plain_variance(cache, X.flatten(0, -2)).reshape(X.shape[:-1])


def _plain_variance(cache: PredictionCache, X: Tensor) -> Tensor:
    near = cache.settings.internal.near
    if cache.settings.variance == "auto" and isinstance(cache.solver, KrylovSolver) and _near_serve(cache, X, near):
        found = _near_variance(cache, X, near)
        if found is not None:
            return found
    return _exact_variance(cache, X)


def _exact_variance(cache: PredictionCache, X: Tensor) -> Tensor:
    n, solver = cache.system.size, cache.variance_solver()
    result = torch.empty(X.shape[0], dtype=cache.system.dtype, device=X.device)
    for piece, _, form in cache.prior.slabs(X):
        prior, found = form.diagonal()[n:].double(), []
        for test in tiles(slice(n, form.size), columns_within(n)):
            b = cache.system.scaled(form.block(slice(0, n), test))  # (n, k)
            found.append(solver.explained(b, prior[test.start - n : test.stop - n]))
        result[piece] = (prior - torch.cat(found)).clamp_min_(0.0).to(result)
    return result


def _near_serve(cache: PredictionCache, X: Tensor, settings: NearVarianceSettings) -> bool:
    """Whether exact variances are too much work, and neighbours cheap to find. Ranks share the work instead."""
    if cache.system.group.size > 1 or coordinates(cache.prior.form) is None:
        return False
    return settings.pays(X.shape[0], cache.system.size, cache.solution.iterations, cache.system.device)


def _near_variance(cache: PredictionCache, X: Tensor, settings: NearVarianceSettings) -> Tensor | None:
    """None where no number of neighbours comes near enough to the exact variances at a sample."""
    generator = torch.Generator().manual_seed(cache.settings.seed)
    sample = X[torch.randperm(X.shape[0], generator=generator)[: settings.sample].to(X.device)]
    exact = _exact_variance(cache, sample).double()
    for count in settings.counts:
        excess = _by_neighbours(cache, sample, count).double() / exact.clamp_min(1e-300) - 1.0
        if float(excess.square().mean().sqrt()) <= settings.excess:
            cache.near_used(count, float(excess.max()))
            return _by_neighbours(cache, X, count)
    return None


def _by_neighbours(cache: PredictionCache, X: Tensor, count: int) -> Tensor:
    n = cache.system.size
    result = torch.empty(X.shape[0], dtype=cache.system.dtype, device=X.device)
    for piece, _, form in cache.prior.slabs(X):
        new = torch.arange(n, form.size, device=form.device)
        found = near_variances(in_float64(form), cache.prior.noise, cache.prior.residual, new, count)
        result[piece] = found.clamp_min_(0.0).to(result)
    return result


def _covariance(cache: PredictionCache, X: Tensor, solver: VarianceSolver) -> Tensor:
    n = cache.system.size
    sampling.check_moderate(n, X.shape[0], cache.settings.internal.sampling)
    form = cache.prior.joint(X)[1]
    new = slice(n, form.size)
    b = cache.system.scaled(form.block(slice(0, n), new))
    result = form.block(new, new).double().sub_(solver.gram(b, form.diagonal()[n:]))
    result = (result + result.T) / 2
    result.diagonal().clamp_min_(0.0)
    return result


def _sample(cache: PredictionCache, X: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    settings = cache.settings.internal.sampling
    if cache.system.size + X.shape[0] > settings.joint_limit:
        covariance = _covariance(cache, X, cache.solver)
        mean = _mean(cache, X).to(covariance)
        drawn = sampling.root(covariance, settings) @ sampling.gaussian(X.shape[0], count, generator, covariance.device)
    else:
        mean, joint = cache.prior.joint(X, torch.float64)
        drawn = sampling.matheron(
            joint, cache.prior.noise, cache.prior.residual, cache.solve, count, generator, settings
        )
    return (mean[:, None] + drawn).T
