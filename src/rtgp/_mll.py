"""The GPyTorch drop-in: `rtgp.MarginalLogLikelihood` in place of `gpytorch.mlls.ExactMarginalLogLikelihood`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import GP
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from rtgp._memory import enough_memory
from rtgp._methods import RRCG, Method, likelihood_method
from rtgp._objectives import Batch, EstimateRequest, EstimateStats, Objective, covers
from rtgp._objectives.reading import Systems, check_inputs, check_model, read_output, read_systems
from rtgp._objectives.several import estimate_all, joint_state, separate_states
from rtgp._ownership import without_cycles
from rtgp._precision import Notices
from rtgp._state import State
from rtgp._traces import draw_seed
from rtgp.errors import InputError, NotPositiveDefiniteError, RTGPError, SettingError, UnsupportedModelError


class NotPSDCovarianceError(NotPositiveDefiniteError, NotPSDError):
    """What GPyTorch raises here too, so that callers that expect it find it (BoTorch then starts again)."""


@dataclass(frozen=True)
class Evaluated:
    """What `MarginalLogLikelihood.evaluate` returns.

    Of a batch of models, contrast and information are those of the mean of their objectives.

    Attributes
    ----------
    objective : Tensor
        The estimate per point, differentiable: a scalar, or the shape of a batch of models.
    contrast : Tensor or None
        A scalar whose gradient has mean zero and the covariance of the gradient estimate.
    information : Tensor or None
        The average-information matrix per point, (p, p).
    """

    objective: Tensor
    contrast: Tensor | None
    information: Tensor | None


class MarginalLogLikelihood(ExactMarginalLogLikelihood):
    """An estimate of the log marginal likelihood, divided by n, whose backward() is the gradient estimate.

    It takes the place of `gpytorch.mlls.ExactMarginalLogLikelihood` and follows its scaling, priors and added loss
    terms. It takes what that takes: several tasks, missing targets, and batches of models, of which it gives one value
    each. The preconditioner and the warm start are kept between calls. At the end of a `with` block they are released.
    Several outputs may share one kernel and noise: `rtgp.SharedOutputs`, with targets (t, n). The estimate is then the
    sum over the outputs, divided by n t.

    Parameters
    ----------
    likelihood : gpytorch likelihood
        One of Gaussian noise, such as a `GaussianLikelihood` or a `MultitaskGaussianLikelihood`.
    model : gpytorch.models.ExactGP
        The model, with its training data.
    method : str or settings object, optional
        "cholesky", "cg", "rr-cg", another name, or an object such as `rtgp.RRCG()`, which is the default.
    generator : torch.Generator, optional
        The source of random numbers. By default torch's own generator.
    draws : {"fresh", "frozen"}
        "fresh" draws new probes and truncations in every call: the estimate is unbiased. "frozen" keeps them and runs
        every series to working precision: the surface is deterministic and smooth, for optimisers such as L-BFGS.

    Attributes
    ----------
    last : EstimateStats or None
        Statistics of the latest estimate.

    Examples
    --------
    >>> import gpytorch, torch, rtgp
    >>> class Model(gpytorch.models.ExactGP):
    ...     def __init__(self, X, y, likelihood):
    ...         super().__init__(X, y, likelihood)
    ...         self.mean_module = gpytorch.means.ConstantMean()
    ...         self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    ...     def forward(self, x):
    ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
    >>> X = torch.linspace(0, 1, 50)[:, None]
    >>> y = torch.sin(6 * X[:, 0])
    >>> likelihood = gpytorch.likelihoods.GaussianLikelihood()
    >>> model = Model(X, y, likelihood)
    >>> generator = torch.Generator().manual_seed(0)
    >>> with rtgp.MarginalLogLikelihood(likelihood, model, method="rr-cg", generator=generator) as mll:
    ...     loss = -mll(model(X), y)
    ...     loss.backward()
    >>> bool(torch.isfinite(model.covar_module.base_kernel.raw_lengthscale.grad).all())
    True
    """

    def __init__(
        self,
        likelihood: _GaussianLikelihoodBase,
        model: GP,
        method: str | Method | None = None,
        generator: torch.Generator | None = None,
        draws: str = "fresh",
        *,
        _notices: Notices | None = None,
    ) -> None:
        check_model(model, likelihood, "MarginalLogLikelihood(likelihood, model)")
        if draws not in ("fresh", "frozen"):
            raise SettingError(f"The 'draws' parameter must be 'fresh' or 'frozen'. Got {draws!r} instead.")
        check_inputs(model)
        super().__init__(likelihood, model)
        self.method = likelihood_method(RRCG() if method is None else method)
        self.method_asked_for = method is not None
        self.draws = draws
        self.last: EstimateStats | None = None
        self._generator = generator
        self._objective = self._make_objective()
        self._others: list[Objective] = []  # of the second and further models of a batch
        self._seed: int | None = None
        self._notices = Notices() if _notices is None else _notices
        without_cycles(self, recurse=False)  # the model and the likelihood are the caller's

    @property
    def generator(self) -> torch.Generator | None:
        """Where random numbers come from; None stands for torch's default generator."""
        return self._generator

    def reset(self) -> None:
        """Forget the preconditioner, the warm start and frozen draws."""
        self.release()
        self._seed = None

    def overcome(self, error: RTGPError) -> str | None:
        """Change a setting so that an estimate that failed may succeed.

        Parameters
        ----------
        error : RTGPError
            What the estimate raised.

        Returns
        -------
        str or None
            What was changed, in words. None where nothing can be changed.
        """
        changes = [change for own in self._objectives if (change := own.overcome(error)) is not None]
        return changes[0] if changes else None  # of a batch it is not known which one failed: all change what they can

    def release(self) -> None:
        """Free the memory that is kept for the next call.

        That is the preconditioner, the warm start, the stored kernel and what a GPU has recorded. The next call makes
        them again. Frozen draws stay.
        """
        for objective in self._objectives:
            objective.reset()

    @property
    def _objectives(self) -> list[Objective]:
        """One for each model of a batch."""
        return [self._objective, *self._others]

    def _make_objective(self) -> Objective:
        return self.method.make_objective(frozen=self.draws == "frozen")

    def _of_each(self, count: int) -> list[Objective]:
        self._others = self._others[: count - 1]
        self._others += [self._make_objective() for _ in range(count - 1 - len(self._others))]
        return self._objectives

    def objective_state(self) -> State:
        """What is held between calls, for a checkpoint.

        Returns
        -------
        State
            Tensors and numbers by name.
        """
        return joint_state(self._objectives)

    def load_objective_state(self, state: State) -> None:
        """Take up what an earlier `objective_state` held.

        Parameters
        ----------
        state : State
            What that has returned.
        """
        parts = separate_states(state)
        for objective, part in zip(self._of_each(len(parts)), parts, strict=True):
            objective.load_state_dict(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def forward(self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any) -> Tensor:
        """The estimate for the model's output on its training inputs.

        Parameters
        ----------
        function_dist : gpytorch.distributions.MultivariateNormal
            The model's output, `model(train_x)`.
        target : Tensor
            The training targets, (n,), or the shape of the output of several tasks or models.
        *params, **kwargs
            What the likelihood takes beside them, as in GPyTorch.

        Returns
        -------
        Tensor
            The log marginal likelihood per point, differentiable: a scalar, or the shape of a batch of models.
        """
        return self.evaluate(function_dist, target, *params, **kwargs).objective

    def evaluate(
        self,
        function_dist: MultivariateNormal,
        target: Tensor,
        *params: Any,
        contrast: bool = False,
        information: float | None = None,
        iterations: int | None = EstimateRequest.iterations,
        most_iterations: int | None = None,
        hold: bool = False,
        complete: bool = False,
        once: bool = False,
        prior: bool = False,
        **kwargs: Any,
    ) -> Evaluated:
        """The estimate, and what optimisers made for noisy gradients need beside it.

        Parameters
        ----------
        function_dist : gpytorch.distributions.MultivariateNormal
            The model's output, `model(train_x)`.
        target : Tensor
            The training targets, (n,).
        *params, **kwargs
            What the likelihood takes beside them, as in GPyTorch.
        contrast : bool
            Whether to give a scalar whose gradient has mean zero and the covariance of the gradient estimate.
        information : float, optional
            Tolerance of the solves for the average-information matrix over the trainable parameters of this module, in
            their order. By default the matrix is not computed.
        iterations : int or None
            Iterations after which those solves end in any case. None sets no bound.
        most_iterations : int, optional
            Iterations of conjugate gradients after which the estimate is given up with a ConvergenceError.
        hold : bool
            Whether the shape of the preconditioner, the warm start and what was learnt stay as they are, for draws that
            are used again.
        complete : bool
            Whether conjugate gradients run to working precision, without truncation.
        once : bool
            Whether no call follows, so that a preconditioner must pay in this one.
        prior : bool
            Whether `function_dist` is the prior although the model is in eval mode: what `model.forward` returns.

        Returns
        -------
        Evaluated
            The objective, the contrast and the information matrix.
        """
        systems = self._read_all(function_dist, target, *params, prior=prior, **kwargs)
        first = systems.batches[0].form
        trained = self._trained() if contrast or information is not None else ()
        request = EstimateRequest(
            contrast, trained, information, iterations, most_iterations, hold, complete, once, self._notices
        )
        n, device, outputs = first.size, str(first.device), max(batch.outputs for batch in systems.batches)
        if outputs > 1 and not self.method.several_outputs:
            raise UnsupportedModelError(
                f"{type(self.method).__name__} takes one output at a time. Got {outputs} that share one kernel and "
                "noise: take RRCG(), CG() or Cholesky(), or a model for each output."
            )
        what = f"The likelihood of {n:,} points by {type(self.method).__name__}"
        try:
            with enough_memory(what, self.method.memory_remedy(n, device)):
                objectives = self._of_each(len(systems.batches))
                estimate = estimate_all(objectives, systems.batches, self._call_generator(), request)
        except NotPositiveDefiniteError as error:
            raise NotPSDCovarianceError(str(error)) from error
        except LinAlgError as error:  # of the preconditioner, which is made of some of the rows
            raise NotPSDCovarianceError(
                "A part of the covariance matrix cannot be factored: the kernel gives NaN or infinity, or is not "
                f"positive definite in {first.dtype}. Look at its formula, raise the lower bound of the noise, or use "
                "float64."
            ) from error
        self.last = replace(estimate.stats, rows=sum(batch.residual.numel() for batch in systems.batches))
        # The value of the estimate, with the gradient of the surrogate.
        losses = estimate.values + (estimate.surrogates - estimate.surrogates.detach())
        total = self._with_priors(-losses.to(systems.batches[0].residual.dtype).reshape(systems.shape), params)
        per_target = systems.count * len(systems.batches)
        found = estimate.information
        return Evaluated(
            objective=total / systems.count,
            contrast=None if estimate.contrast is None else estimate.contrast / per_target,
            information=None if found is None else found / per_target,
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

    def knows_information(self, function_dist: MultivariateNormal, target: Tensor, prior: bool = False) -> bool:
        """Whether `evaluate` can give the average-information matrix of all trainable parameters.

        Parameters
        ----------
        function_dist : gpytorch.distributions.MultivariateNormal
            The model's output, `model(train_x)`.
        target : Tensor
            The training targets, (n,).
        prior : bool
            As of `evaluate`.

        Returns
        -------
        bool
            True where the information of every parameter is known.
        """
        systems, trained = self._read_all(function_dist, target, prior=prior), self._trained()
        return all(covers(batch, trained) for batch in systems.batches)

    def _trained(self) -> list[Tensor]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def _call_generator(self) -> torch.Generator | None:
        if self.draws == "fresh":
            return self._generator
        if self._seed is None:
            self._seed = draw_seed(self._generator)
        return torch.Generator().manual_seed(self._seed)

    def _read(self, dist: MultivariateNormal, target: Tensor) -> Batch:
        return read_output(self.model, self.likelihood, dist, target)

    def _read_all(self, dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any) -> Systems:
        return read_systems(self.model, self.likelihood, dist, target, *params, **kwargs)
