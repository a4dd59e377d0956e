"""The model of SVGP, from GPyTorch's own variational parts."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel
from gpytorch.means import Mean
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from linear_operator import to_linear_operator
from torch import Tensor

from rtgp._baselines.svgp.posterior import VariationalPosterior
from rtgp._kernels import read_kernel
from rtgp._kernels.batches import small_blocks
from rtgp._ownership import without_cycles
from rtgp.posterior import PosteriorSettings

# Added to K(Z, Z), as a part of the target's variance: GPyTorch's own for targets of unit variance.
JITTER = {torch.float32: 1e-4, torch.float64: 1e-6}


class _Strategy(VariationalStrategy):
    """GPyTorch's own, without holding the model that holds it."""

    @property
    def model(self) -> Any:
        return self._held()

    @model.setter
    def model(self, model: Any) -> None:
        object.__setattr__(self, "_held", weakref.ref(model))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": self.model}  # for copies and pickles, which know no weak references

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_held": weakref.ref(state["_held"])})


class VariationalModel(ApproximateGP):
    """y = f(x) + noise, with f(Z) = mean(Z) + L v, L L^T = K(Z, Z) + jitter I and v ~ N(m, R R^T).

    R is full and lower triangular. Predictions need Z, m and R, not the training data.
    """

    def __init__(self, inducing: Tensor, likelihood: Any, mean: Mean, kernel: Kernel, jitter: float) -> None:
        # No noise on the first mean: it would come from torch's global generator.
        distribution = CholeskyVariationalDistribution(inducing.shape[0], mean_init_std=0.0)
        super().__init__(_Strategy(self, inducing, distribution, jitter_val=jitter))
        self.likelihood, self.mean_module, self.covar_module = likelihood, mean, kernel
        self.variational_strategy.variational_params_initialized.fill_(1)  # m = 0, R = I, unless set otherwise
        without_cycles(self)

    def forward(self, x: Tensor) -> MultivariateNormal:
        mean, covariance = self.mean_module(x), self.covar_module(x)
        if any(isinstance(part, (AdditiveKernel, ProductKernel)) for part in self.covar_module.modules()):
            # Left to itself, linear_operator may factor the parts, with jitter, beyond 800 points by random Lanczos.
            everything = torch.arange(x.shape[0], device=x.device)[None]
            covariance = to_linear_operator(small_blocks(read_kernel(self.covar_module, x), everything)[0].to(x.dtype))
        return MultivariateNormal(mean, covariance)

    def make_posterior(self, likelihood: Any, settings: PosteriorSettings) -> VariationalPosterior:
        """Its predictions at new points."""
        return VariationalPosterior(self, likelihood)

    @property
    def inducing_points(self) -> Tensor:
        """Z, (m, d)."""
        points: Tensor = self.variational_strategy.inducing_points
        return points

    def forget(self) -> None:
        """Drop what GPyTorch keeps of K(Z, Z) from one call in training mode to the next, autograd history included."""
        self.variational_strategy._clear_cache()

    @property
    def jitter(self) -> float:
        return float(self.variational_strategy.jitter_val)

    @property
    def whitened_mean(self) -> Tensor:
        """m, (m,)."""
        mean: Tensor = self.variational_strategy._variational_distribution.variational_mean
        return mean

    @property
    def whitened_root(self) -> Tensor:
        """R, (m, m), lower triangular."""
        root: Tensor = self.variational_strategy._variational_distribution.chol_variational_covar
        return root.tril()

    def hyperparameter_modules(self) -> torch.nn.Module:
        """What has hyperparameters, without what belongs to the approximation."""
        parts = {"likelihood": self.likelihood, "mean_module": self.mean_module, "covar_module": self.covar_module}
        return torch.nn.ModuleDict(parts)


def kmeans_centres(x: Tensor, count: int, seed: int) -> Tensor:
    """Centres of `count` clusters; the points themselves if that many are wanted. Each comes once.

    Two equal inducing points would say the same, and make K(Z, Z) singular.
    """
    if count == x.shape[0]:
        rows: Tensor = torch.unique(x, dim=0)
        return rows
    from sklearn.cluster import MiniBatchKMeans

    # A fixed number of passes: no criterion whose sums depend on the number of threads decides when to end.
    found = MiniBatchKMeans(
        count, batch_size=4096, max_iter=10, tol=0.0, max_no_improvement=None, n_init=1, random_state=seed
    ).fit(x.detach().double().cpu().numpy())
    centres: Tensor = torch.unique(torch.as_tensor(found.cluster_centers_).to(x), dim=0)
    return centres
