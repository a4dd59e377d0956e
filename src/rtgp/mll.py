"""The GPyTorch drop-in: `rtgp.MarginalLogLikelihood` in place of `gpytorch.mlls.ExactMarginalLogLikelihood`."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import GP
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor

from rtgp.errors import InputError, SettingError, UnsupportedModelError
from rtgp.kernels import read_covariance
from rtgp.methods import RRCG, Method, resolve_method
from rtgp.objectives import Batch, EstimateStats


class MarginalLogLikelihood(ExactMarginalLogLikelihood):
    """An estimate of the log marginal likelihood, divided by n, whose backward() is the gradient estimate.

    It follows GPyTorch's scaling, priors and added loss terms. Preconditioner and warm start are held between calls;
    `reset()` clears them. `last` holds the statistics of the latest estimate.

    method: "cholesky", "cg", "rr-cg" or a settings object such as rtgp.RRCG() (the default).
    generator: where random numbers come from; None: torch's default generator.
    draws: "fresh" (new probes and truncations in every call: unbiased) or "frozen" (the same in every call, every
    series run to working precision: a deterministic, smooth surface for optimisers such as L-BFGS).
    """

    def __init__(
        self,
        likelihood: GaussianLikelihood | FixedNoiseGaussianLikelihood,
        model: GP,
        method: str | Method | None = None,
        generator: torch.Generator | None = None,
        draws: str = "fresh",
    ) -> None:
        if not isinstance(likelihood, (GaussianLikelihood, FixedNoiseGaussianLikelihood)):
            raise UnsupportedModelError(
                "Expected a GaussianLikelihood or a FixedNoiseGaussianLikelihood. "
                f"Got {type(likelihood).__name__}: the marginal likelihood is a closed form for Gaussian noise only."
            )
        if not isinstance(model, GP):
            raise UnsupportedModelError(
                f"Expected a GPyTorch model (gpytorch.models.ExactGP). Got {type(model).__name__} instead."
            )
        if draws not in ("fresh", "frozen"):
            raise SettingError(f"The 'draws' parameter must be 'fresh' or 'frozen'. Got {draws!r} instead.")
        super().__init__(likelihood, model)
        self.method = resolve_method(RRCG() if method is None else method)
        self.draws = draws
        self.last: EstimateStats | None = None
        self._generator = generator
        self._objective = self.method.make_objective(frozen=draws == "frozen")
        self._seed: int | None = None

    def reset(self) -> None:
        """Forget the preconditioner, the warm start and frozen draws."""
        self._objective.reset()
        self._seed = None

    def forward(self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any) -> Tensor:
        """The estimate for the model's output on its training inputs, `model(train_x)`, and the targets."""
        batch = self._read(function_dist, target, *params, **kwargs)
        estimate = self._objective(batch, self._call_generator())
        self.last = estimate.stats
        # The value of the estimate, with the gradient of the surrogate.
        loss = estimate.value + (estimate.surrogate - estimate.surrogate.detach())
        total: Tensor = self._add_other_terms(-loss.to(target.dtype), params)
        return total / batch.form.size

    def _call_generator(self) -> torch.Generator | None:
        if self.draws == "fresh":
            return self._generator
        if self._seed is None:
            self._seed = int(torch.randint(2**62, (), generator=self._generator))
        return torch.Generator().manual_seed(self._seed)

    def _read(self, dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any) -> Batch:
        if isinstance(dist, MultitaskMultivariateNormal):
            raise UnsupportedModelError(
                "Multitask models are not supported: model the tasks one by one, or use gpytorch.mlls."
            )
        if not isinstance(dist, MultivariateNormal):
            raise InputError(
                "Expected the model's output on its training inputs, a MultivariateNormal. "
                f"Got {type(dist).__name__} instead: call mll(model(train_x), train_y)."
            )
        mean = dist.mean
        if mean.ndim != 1 or target.shape != mean.shape:
            raise InputError(
                f"Expected targets of shape (n,) = {tuple(mean.shape[-1:])}, one for each training point. "
                f"Got targets of shape {tuple(target.shape)} and a model output of shape {tuple(mean.shape)}. "
                "Batches of models are not supported: train one model at a time."
            )
        if not bool(torch.isfinite(target).all()):
            raise InputError(f"The targets hold NaN or infinity (first at row {_first_bad(target)}). Drop those rows.")
        form = read_covariance(dist.lazy_covariance_matrix)
        for tensor in form.tensors:
            if not bool(torch.isfinite(tensor).all()):
                raise InputError(
                    "NaN or infinity in the inputs or in the kernel's parameters. Check that X is finite and that no "
                    "parameter has diverged; a smaller learning rate helps against the latter."
                )
        noise = self.likelihood._shaped_noise_covar(mean.shape, *params, **kwargs)
        variances = noise.diag_values if isinstance(noise, ConstantDiagLinearOperator) else noise.diagonal()
        if not bool((variances > 0).all()):
            raise InputError("The noise variances must be positive and finite. Give every point a positive noise.")
        return Batch(form, variances.reshape(()) if variances.numel() == 1 else variances, target - mean)


def _first_bad(target: Tensor) -> int:
    return int((~torch.isfinite(target)).nonzero()[0, 0])
