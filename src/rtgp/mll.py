"""The GPyTorch drop-in: `rtgp.MarginalLogLikelihood` in place of `gpytorch.mlls.ExactMarginalLogLikelihood`."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import GP
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from rtgp.errors import InputError, NotPositiveDefiniteError, RTGPError, SettingError
from rtgp.memory import enough_memory, remedy_for
from rtgp.methods import RRCG, Method, likelihood_method
from rtgp.objectives import Batch, EstimateStats, Extras, covers
from rtgp.objectives.reading import check_inputs, check_model, read_output
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
        check_model(model, likelihood, "MarginalLogLikelihood(likelihood, model)")
        if draws not in ("fresh", "frozen"):
            raise SettingError(f"The 'draws' parameter must be 'fresh' or 'frozen'. Got {draws!r} instead.")
        check_inputs(model)
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
        hold: bool = False,
        once: bool = False,
        **kwargs: Any,
    ) -> Evaluated:
        """The estimate with what optimisers made for noisy gradients need beside it.

        contrast: a scalar whose gradient has mean zero and the covariance of the gradient estimate (`LossEstimate`).
        information: the average-information matrix over the trainable parameters of this module, in their order, with
        solves of this tolerance; like the objective, divided by n.
        iterations: after which those solves end all the same; None: as many as it takes.
        most_iterations: of conjugate gradients, after which the estimate is given up with a ConvergenceError.
        hold: keep the shape of the preconditioner, the warm start and what was learnt, for draws that are used again.
        once: no call is to follow, so that only a preconditioner that pays in this one is made.
        """
        batch = self._read(function_dist, target, *params, **kwargs)
        trained = self._trained() if contrast or information is not None else ()
        extras = Extras(contrast, trained, information, iterations, most_iterations, hold, once)
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
        total = self._with_priors(-loss.to(batch.residual.dtype), params)
        found = estimate.information
        return Evaluated(
            objective=total / n,
            contrast=None if estimate.contrast is None else estimate.contrast / n,
            information=None if found is None else found / n,
        )

    def _with_priors(self, value: Tensor, params: tuple[Any, ...]) -> Tensor:
        try:
            total: Tensor = self._add_other_terms(value, params)
        except ValueError as error:  # of torch.distributions: a value outside the support
            raise InputError(
                f"Expected parameters in the support of their priors. {str(error).rstrip('.')}. Start them inside, or "
                "constrain them to that support (gpytorch.constraints)."
            ) from error
        return total

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
        return read_output(self.model, self.likelihood, dist, target, *params, **kwargs)
