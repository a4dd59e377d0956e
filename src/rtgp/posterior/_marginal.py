"""What posteriors have in common that know their moments at a batch of points directly, without a solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from rtgp._objectives.reading import noise_of_new
from rtgp.errors import SettingError
from rtgp.posterior import _sampling as sampling
from rtgp.posterior._checks import check_new_inputs
from rtgp.posterior._prior import evaluating


def added_noise(likelihood: Any, include: bool, noise: Tensor | float | None, m: int) -> Tensor:
    """What to add to the variances of m points, () or (m,) float64."""
    if include:
        return noise_of_new(likelihood, noise, m)
    if noise is not None:
        raise SettingError("The 'noise' parameter belongs to include_noise=True. Pass both, or neither.")
    return torch.zeros((), dtype=torch.float64)


def check_count(n: object, name: str = "n", call: str = "sample") -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise SettingError(f"The '{name}' parameter of {call} must be a positive integer. Got {n!r} instead.")


class MarginalPosterior(ABC):
    """Predictions of a model that knows its moments at new points directly; made by `rtgp.posterior`.

    It has the methods of `Posterior`. Sparse models, experts and predictions from neighbours have one.

    Parameters
    ----------
    model : torch.nn.Module
        A trained model.
    likelihood : gpytorch likelihood
        Its likelihood.

    Examples
    --------
    >>> import numpy as np, torch, rtgp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> gp = rtgp.GPRegressor(standardize=False, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> prediction = rtgp.posterior(gp.model_, gp.likelihood_, neighbours=10)
    >>> prediction.mean(torch.tensor([[0.25], [0.75]])).shape
    torch.Size([2])
    """

    def __init__(self, model: Any, likelihood: Any) -> None:
        self.model, self.likelihood = model, likelihood

    @abstractmethod
    def release(self) -> None:
        """Free what is kept from call to call. The next call computes it again."""

    @abstractmethod
    def _reference(self) -> Tensor:
        """A tensor of the model (..., d) whose dtype and columns are those of its inputs."""

    @abstractmethod
    def _marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at x (m, d), each (m,) float64, in memory that does not grow with m but by these."""

    @abstractmethod
    def _joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (m,) and covariance (m, m) at x (m, d), float64."""

    def mean(self, X: Tensor) -> Tensor:
        """The posterior mean.

        Parameters
        ----------
        X : Tensor
            New points, (m, d).

        Returns
        -------
        Tensor
            The mean at each, (m,).
        """
        with evaluating(self.model):
            return self._returned(self._marginals(self._checked(X))[0], X)

    def variance(self, X: Tensor, include_noise: bool = False, *, noise: Tensor | float | None = None) -> Tensor:
        """The posterior variance of the function, or of new observations.

        Parameters
        ----------
        X : Tensor
            New points, (m, d).
        include_noise : bool
            Whether the variance is that of a new observation, noise included.
        noise : Tensor or float, optional
            For a `FixedNoiseGaussianLikelihood`, the known variances of the noise of the new observations.

        Returns
        -------
        Tensor
            The variance at each point, (m,).
        """
        with evaluating(self.model):
            x = self._checked(X)
            added = added_noise(self.likelihood, include_noise, noise, x.shape[0])
            variance = self._marginals(x)[1].clamp_min(0.0)
            return self._returned(variance + added.to(variance.device), X)

    def covariance(self, X: Tensor, include_noise: bool = False, *, noise: Tensor | float | None = None) -> Tensor:
        """The joint posterior covariance of a moderate number of points.

        Parameters
        ----------
        X : Tensor
            New points, (m, d).
        include_noise : bool
            Whether the noise of new observations is added to the diagonal.
        noise : Tensor or float, optional
            For a `FixedNoiseGaussianLikelihood`, the known variances of the noise of the new observations.

        Returns
        -------
        Tensor
            The covariance, (m, m).
        """
        with evaluating(self.model):
            x = self._checked(X)
            added = added_noise(self.likelihood, include_noise, noise, x.shape[0])
            covariance = self._joint(x)[1]
            covariance.diagonal().clamp_min_(0.0).add_(added.to(covariance))
            return self._returned(covariance, X)

    def sample(self, X: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Joint samples of the function at a moderate number of points.

        Parameters
        ----------
        X : Tensor
            New points, (m, d).
        n : int
            The number of samples.
        generator : torch.Generator, optional
            The source of random numbers. By default torch's own generator.

        Returns
        -------
        Tensor
            A sample in each row, (n, m).
        """
        check_count(n)
        with evaluating(self.model):
            mean, covariance = self._joint(self._checked(X))
            drawn = sampling.root(covariance) @ sampling.gaussian(len(mean), n, generator, mean.device)
            return self._returned((mean[:, None] + drawn).T, X)

    def _checked(self, X: Tensor) -> Tensor:
        reference = self._reference()
        return check_new_inputs(X, reference.shape[-1]).to(reference)

    def _returned(self, result: Tensor, X: Tensor) -> Tensor:
        return result.to(X.device, self._reference().dtype)
