"""The GPyTorch drop-in: `rtgp.MarginalLogLikelihood` in place of `gpytorch.mlls.ExactMarginalLogLikelihood`."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import GP
from linear_operator.operators import ConstantDiagLinearOperator
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from rtgp.errors import InputError, NotPositiveDefiniteError, RTGPError, SettingError, UnsupportedModelError
from rtgp.kernels import KernelForm, read_covariance
from rtgp.memory import enough_memory, remedy_for
from rtgp.methods import RRCG, Method, likelihood_method
from rtgp.objectives import Batch, EstimateStats, Extras, covers
from rtgp.ownership import without_cycles


class NotPSDCovarianceError(NotPositiveDefiniteError, NotPSDError):
    """What GPyTorch raises in this place too: callers that expect it (BoTorch starts anew) find it."""


@dataclass(frozen=True)
class Evaluated:
    """What `MarginalLogLikelihood.evaluate` returns."""

    objective: Tensor  # (), differentiable
    contrast: Tensor | None  # (), differentiable
    information: Tensor | None  # (p, p)


class MarginalLogLikelihood(ExactMarginalLogLikelihood):
    """An estimate of the log marginal likelihood, divided by n, whose backward() is the gradient estimate.

    It follows GPyTorch's scaling, priors and added loss terms. Preconditioner and warm start are held between calls;
    `reset()` clears them. `last` holds the statistics of the latest estimate. `release()`, or the end of a `with`
    block, frees the memory that is held for the next call.

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
                f"Got {type(likelihood).__name__}: the marginal likelihood has a closed form for Gaussian noise only. "
                "Use one of these two, or gpytorch.mlls.VariationalELBO for other likelihoods."
            )
        if not isinstance(model, GP):
            raise UnsupportedModelError(
                f"Expected a GPyTorch model (gpytorch.models.ExactGP). Got {type(model).__name__} instead: "
                "call MarginalLogLikelihood(likelihood, model), in this order."
            )
        if draws not in ("fresh", "frozen"):
            raise SettingError(f"The 'draws' parameter must be 'fresh' or 'frozen'. Got {draws!r} instead.")
        _check_train_inputs(model)
        super().__init__(likelihood, model)
        self.method = likelihood_method(RRCG() if method is None else method)
        self.draws = draws
        self.last: EstimateStats | None = None
        self._generator = generator
        self._objective = self.method.make_objective(frozen=draws == "frozen")
        self._seed: int | None = None
        without_cycles(self, recurse=False)  # the model and the likelihood are the caller's

    def reset(self) -> None:
        """Forget the preconditioner, the warm start and frozen draws."""
        self._objective.reset()
        self._seed = None

    def overcome(self, error: RTGPError) -> str | None:
        """Change what can be changed so that an estimate that failed may succeed: what was changed, in words."""
        return self._objective.overcome(error)

    def release(self) -> None:
        """Free the preconditioner, the warm start, the stored kernel and what a card has recorded. Another call makes
        them anew; frozen draws stay what they were."""
        self._objective.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def forward(self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any) -> Tensor:
        """The estimate for the model's output on its training inputs, `model(train_x)`, and the targets."""
        return self.evaluate(function_dist, target, *params, **kwargs).objective

    def evaluate(
        self,
        function_dist: MultivariateNormal,
        target: Tensor,
        *params: Any,
        contrast: bool = False,
        information: float | None = None,
        iterations: int | None = Extras.iterations,
        most_iterations: int | None = None,
        **kwargs: Any,
    ) -> Evaluated:
        """The estimate with what optimisers made for noisy gradients need beside it.

        contrast: a scalar whose gradient has mean zero and the covariance of the gradient estimate (`LossEstimate`).
        information: the average-information matrix over the trainable parameters of this module, in their order, with
        solves of this tolerance; like the objective, divided by n.
        iterations: after which those solves end all the same; None: as many as it takes.
        most_iterations: of conjugate gradients, after which the estimate is given up with a ConvergenceError.
        """
        batch = self._read(function_dist, target, *params, **kwargs)
        trained = self._trained() if contrast or information is not None else ()
        extras = Extras(contrast, trained, information, iterations, most_iterations)
        n, device = batch.form.size, str(batch.form.device)
        what = f"The likelihood of {n:,} points by {type(self.method).__name__}"
        try:
            with enough_memory(what, remedy_for(self.method, n, device)):
                estimate = self._objective(batch, self._call_generator(), extras)
        except NotPositiveDefiniteError as error:
            raise NotPSDCovarianceError(str(error)) from error
        except LinAlgError as error:  # of the preconditioner, which is made of some of the rows
            raise NotPSDCovarianceError(
                "A part of the covariance matrix cannot be factored: the kernel gives NaN or infinity, or is not "
                f"positive definite in {batch.form.dtype}. Look at its formula, raise the lower bound of the noise, or "
                "use float64."
            ) from error
        self.last = estimate.stats
        # The value of the estimate, with the gradient of the surrogate.
        loss = estimate.value + (estimate.surrogate - estimate.surrogate.detach())
        total: Tensor = self._add_other_terms(-loss.to(batch.residual.dtype), params)
        found = estimate.information
        return Evaluated(
            objective=total / n,
            contrast=None if estimate.contrast is None else estimate.contrast / n,
            information=None if found is None else found / n,
        )

    def knows_information(self, function_dist: MultivariateNormal, target: Tensor) -> bool:
        """Whether `evaluate` can give the average-information matrix of all trainable parameters."""
        return covers(self._read(function_dist, target), self._trained())

    def _trained(self) -> list[Tensor]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def _call_generator(self) -> torch.Generator | None:
        if self.draws == "fresh":
            return self._generator
        if self._seed is None:
            self._seed = int(torch.randint(2**62, (), generator=self._generator))
        return torch.Generator().manual_seed(self._seed)

    def _read(self, dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any) -> Batch:
        mean = _mean_of(dist)
        _check_target(target, mean)
        form = self._form_of(dist)
        noise = self._noise_for(mean, *params, **kwargs)
        read = [*_train_inputs(self.model), mean, target, *form.tensors, noise.log()]
        if not _all_finite(read):  # one look at all of them; which it is, is asked where there is one
            _check_train_inputs(self.model)
            _check_values(mean, target, form, noise)
        return Batch(form, noise, target - mean)

    def _form_of(self, dist: MultivariateNormal) -> KernelForm:
        try:
            return read_covariance(dist.lazy_covariance_matrix)
        except UnsupportedModelError as error:
            if self.model.training:
                raise
            raise InputError(
                "Expected the model's prior on its training inputs. The model is in eval mode, in which model(x) is "
                "the posterior: call model.train() before mll(model(train_x), train_y)."
            ) from error

    def _noise_for(self, mean: Tensor, *params: Any, **kwargs: Any) -> Tensor:
        """The noise variances, () or (n,)."""
        n = mean.shape[0]
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) and "noise" not in kwargs:
            _check_noise_shape(self.likelihood.noise_covar.noise, n)
        noise = self.likelihood._shaped_noise_covar(mean.shape, *params, **kwargs)
        variances: Tensor = noise.diag_values if isinstance(noise, ConstantDiagLinearOperator) else noise.diagonal()
        if variances.numel() == 1:
            variances = variances.reshape(())
        else:
            _check_noise_shape(variances, n)
        return variances


def _train_inputs(model: GP) -> list[Tensor]:
    return [x for x in getattr(model, "train_inputs", None) or () if isinstance(x, Tensor)]


def _all_finite(tensors: list[Tensor]) -> bool:
    """Whether all values are finite: a sum of others is not. Waits for a card once."""
    sums = [tensor.detach().sum(dtype=torch.float64) for tensor in tensors]
    return bool(torch.isfinite(torch.stack(sums)).all())


def _check_train_inputs(model: GP) -> None:
    for x in _train_inputs(model):
        if not bool(torch.isfinite(x).all()):
            where = ", ".join(str(i) for i in (~torch.isfinite(x)).nonzero()[0].tolist())
            raise InputError(
                f"Expected finite training inputs. Got NaN or infinity, first at [{where}]: drop those rows or fill "
                "the gaps before the model is made."
            )


def _mean_of(dist: MultivariateNormal) -> Tensor:
    if isinstance(dist, MultitaskMultivariateNormal):
        raise UnsupportedModelError(
            "Expected a model of one output. Got a multitask model (its output is a MultitaskMultivariateNormal): "
            "train one model for each task, or use gpytorch.mlls."
        )
    if not isinstance(dist, MultivariateNormal):
        raise InputError(
            "Expected the model's output on its training inputs, a MultivariateNormal. "
            f"Got {type(dist).__name__} instead: call mll(model(train_x), train_y)."
        )
    mean: Tensor = dist.mean
    if mean.ndim != 1:
        raise UnsupportedModelError(
            f"Expected one model, whose output has shape (n,). Got a batch of models, of output shape "
            f"{tuple(mean.shape)}: train one model at a time, one for each output."
        )
    return mean


def _check_target(target: Tensor, mean: Tensor) -> None:
    if not isinstance(target, Tensor):
        raise InputError(
            f"Expected targets as a torch.Tensor. Got {type(target).__name__} instead: pass torch.as_tensor(train_y)."
        )
    if not target.is_floating_point():
        raise InputError(f"Expected targets of a floating-point dtype. Got {target.dtype}: pass train_y.to(train_x).")
    if target.shape != mean.shape:
        flat = target.numel() == mean.numel()
        raise InputError(
            f"Expected targets of shape {tuple(mean.shape)}, one for each training point. "
            f"Got shape {tuple(target.shape)}: "
            + ("pass train_y.reshape(-1)." if flat else "pass as many targets as the model has training points.")
        )


def _check_values(mean: Tensor, target: Tensor, form: KernelForm, noise: Tensor) -> None:
    if not bool(torch.isfinite(mean).all()):
        raise InputError(
            "Expected a finite prior mean. Got NaN or infinity: a parameter of the mean has diverged. "
            "Lower the learning rate."
        )
    if not bool(torch.isfinite(target).all()):
        row = int((~torch.isfinite(target)).nonzero()[0, 0])
        raise InputError(f"Expected finite targets. Got NaN or infinity, first at row {row}: drop those rows.")
    for tensor in form.tensors:
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                "Expected finite kernel inputs and parameters. Got NaN or infinity: a parameter has diverged, or "
                "the features that a network passes to the kernel have. Lower the learning rate, or constrain the "
                "parameter."
            )
    if not bool(((noise > 0) & torch.isfinite(noise)).all()):
        raise InputError(
            "Expected noise variances that are positive and finite. "
            f"Got values between {float(noise.detach().min()):.3g} and {float(noise.detach().max()):.3g}: "
            "give every point a positive noise, such as 1e-4 times the variance of the targets."
        )


def _check_noise_shape(noise: Tensor, n: int) -> None:
    if noise.shape != (n,):
        raise InputError(
            f"Expected one noise variance, or one for each of the {n} training points. Got shape "
            f"{tuple(noise.shape)}: make the likelihood without a batch shape and with noise of shape ({n},)."
        )
