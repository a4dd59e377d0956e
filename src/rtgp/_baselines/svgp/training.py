"""Training of SVGP: hyperparameters, inducing points and the Gaussian over them together, by Adam on minibatches.

Once in every epoch the Gaussian is brought to its optimum, which has a closed form. Left to Adam alone it lags behind
the hyperparameters, and the noise grows to make up for it.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import VariationalELBO
from linear_operator.utils.errors import NanError, NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from rtgp._baselines.svgp.model import VariationalModel
from rtgp._baselines.svgp.posterior import VariationalPosterior
from rtgp._baselines.svgp.settings import SVGP
from rtgp._kernels import read_kernel
from rtgp._objectives import EstimateStats
from rtgp._ownership import without_cycles
from rtgp._precision import Notices, decide_after
from rtgp._solvers.cholesky import cholesky_factor
from rtgp.errors import NotPositiveDefiniteError
from rtgp.training._coordinates import coordinates_of
from rtgp.training._errors import TrainingError
from rtgp.training._history import History, hyperparameters, make_row
from rtgp.training._progress import Progress
from rtgp.training._result import FitResult, FitStatus
from rtgp.training._schedule import Schedule, ScheduleSettings

_CHUNK = 4096  # points of K(Z, X) at once


@dataclass(frozen=True)
class VariationalTraining:
    """How SVGP is trained.

    Attributes
    ----------
    learning_rate : float
        The default for the logarithms of the hyperparameters, as for the other methods.
    others : float
        Part of that for the rest: 0.01, the paper's.
    least_steps : int
        For small data, whose epochs are a step or a few. Chosen, not fitted.
    schedule : ScheduleSettings
        How the step size falls.
    """

    learning_rate: float = 0.1
    others: float = 0.1
    least_steps: int = 100
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)


DEFAULT = VariationalTraining()


def train_variational(
    model: VariationalModel,
    x: Tensor,  # (n, d)
    y: Tensor,  # (n,)
    method: SVGP,
    steps: int | None,
    learning_rate: float | None,
    seed: int,
    start: str,
    progress: bool = False,
    settings: VariationalTraining = DEFAULT,
    notices: Notices | None = None,
) -> FitResult:
    """Maximise the evidence lower bound in place; the model ends in eval mode. `start`: where it begins, in words.

    A step that fails in float32 is taken in float64, as are all that follow it.
    """
    notices = Notices() if notices is None else notices
    began = time.perf_counter()
    n, size = x.shape[0], method.sizes(x.shape[0])[1]
    steps = max(settings.least_steps, math.ceil(method.epochs * n / size)) if steps is None else steps
    rate_asked = settings.learning_rate if learning_rate is None else learning_rate
    schedule = Schedule.of("cosine", rate_asked, steps, settings.schedule)
    model.train(), model.likelihood.train()
    named = model.hyperparameter_modules()
    descent = _Descent(model, named, n, settings)
    history = History()
    batches = minibatches(n, size, torch.Generator().manual_seed(seed))
    with Progress(progress, steps) as bar, warnings.catch_warnings():
        # GPyTorch adds jitter of its own, with a warning, where ours is too small: in float32 that asks for float64.
        warnings.simplefilter("error" if x.dtype == torch.float32 else "ignore", NumericalWarning)
        for step, index in enumerate(itertools.islice(batches, steps)):
            rate = schedule.rate(step)
            assert rate is not None
            if step * size // n > (step - 1) * size // n:  # an epoch begins
                set_best_distribution(model, x, y)
            values = hyperparameters(named)
            try:
                loss, norm = descent.step(rate, x, y, index.to(x.device))
            except NotPositiveDefiniteError as error:
                precision = decide_after(error, x.dtype)
                if precision is None:
                    raise
                notices.say(precision)
                warnings.simplefilter("ignore", NumericalWarning)
                x, y = x.to(precision.dtype), y.to(precision.dtype)
                descent = descent.to(precision.dtype)
                loss, norm = descent.step(rate, x, y, index.to(x.device))
            stats = EstimateStats("svgp", x.dtype, math.nan, math.nan, math.nan, 0.0)
            seconds = time.perf_counter() - began
            row = make_row(step, loss, math.nan, norm, math.nan, stats, rate, seconds, values)
            history.append(row)
            bar.update(row, steps)
    set_best_distribution(model, x, y)
    model.forget()
    model.eval(), model.likelihood.eval()
    for parameter in model.parameters():
        parameter.grad = None
    return FitResult(
        history=history,
        status=FitStatus.STEPS,
        method=method,
        method_reason="asked for",
        steps=steps,
        seconds=time.perf_counter() - began,
        loss=-lower_bound(model, x, y) / n,
        loss_error=0.0,
        start=start,
        message=f"all {steps} steps were taken ({steps * size / n:.3g} epochs); the loss is minus a lower bound of the "
        "log marginal likelihood",
        optimizer="adam",
        dtype=str(x.dtype).removeprefix("torch."),
    )


def minibatches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of exactly `size` points: one random order of all n after the other, cut into pieces."""
    left = torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < size:
            left = torch.cat([left, torch.randperm(n, generator=generator)])
        yield left[:size]
        left = left[size:]


class _Descent:
    """Adam. Hyperparameters move by their logarithms, and faster than the rest.

    There is so much more of the rest that a minibatch says little of each of its parameters.
    """

    def __init__(
        self, model: VariationalModel, hyperparameters: torch.nn.Module, n: int, settings: VariationalTraining
    ) -> None:
        self._objective = without_cycles(VariationalELBO(model.likelihood, model, num_data=n), recurse=False)
        self._model, self._likelihood, self._hyperparameters, self._n = model, model.likelihood, hyperparameters, n
        self._settings = settings
        own = {name: p for name, p in hyperparameters.named_parameters() if p.requires_grad}
        self._coordinates = coordinates_of(hyperparameters, own)
        known = {id(parameter) for parameter in own.values()}
        others = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
        leaves = [coordinate.leaf for coordinate in self._coordinates]
        self._parameters = [*own.values(), *others]
        groups = [{"params": leaves, "part": 1.0}, {"params": others, "part": settings.others}]
        self._optimizer = torch.optim.Adam(groups)

    def to(self, dtype: torch.dtype) -> _Descent:
        """The same, the model's parameters and what Adam has gathered in another precision."""
        self._model.to(dtype)
        self._model.forget()
        other = _Descent(self._model, self._hyperparameters, self._n, self._settings)
        other._optimizer.load_state_dict(self._optimizer.state_dict())  # in the precision of the parameters
        return other

    def step(self, rate: float, x: Tensor, y: Tensor, index: Tensor) -> tuple[float, float]:
        """One step; the loss before it, per point, and the norm of its gradient."""
        for parameter in self._parameters:
            parameter.grad = None
        known = isinstance(self._likelihood, FixedNoiseGaussianLikelihood)
        noise: dict[str, Any] = {"noise": self._likelihood.noise[index]} if known else {}
        try:
            loss = -self._objective(self._model(x[index]), y[index], **noise)
            loss.backward()
        except (NotPSDError, NanError, NumericalWarning) as error:
            raise NotPositiveDefiniteError(
                f"The covariance of the inducing points is not positive definite in {x.dtype} ({error}). Use float64, "
                "or fewer inducing points."
            ) from error
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for coordinate in self._coordinates:
            coordinate.pull_gradient()
        groups = self._optimizer.param_groups
        gradients = [leaf.grad for group in groups for leaf in group["params"]]
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        if not (math.isfinite(norm) and math.isfinite(float(loss.detach()))):
            raise TrainingError(
                f"Expected a finite loss and gradient. Got {float(loss.detach())} and norm {norm}: train in float64, "
                "or lower the learning rate."
            )
        for group in groups:
            group["lr"] = rate * group["part"]
        self._optimizer.step()
        for coordinate in self._coordinates:
            coordinate.push()
        return float(loss.detach()), norm


def set_best_distribution(model: VariationalModel, x: Tensor, y: Tensor) -> None:
    """Set q(v) to its optimum for the present hyperparameters and inducing points (Titsias 2009), O(n m^2).

    With A = L^-1 K(Z, X) and noise D: covariance (I + A D^-1 A^T)^-1, mean that times A D^-1 (y - mean).
    """
    with torch.no_grad():
        z = model.inducing_points
        form = read_kernel(model.covar_module, z, torch.float64)
        own = slice(0, len(z))
        covariance = form.block(own, own)
        covariance.diagonal().add_(model.jitter)
        factor = cholesky_factor(covariance)
        precision = torch.eye(len(z), dtype=torch.float64, device=z.device)
        weighted = torch.zeros(len(z), dtype=torch.float64, device=z.device)
        noise = model.likelihood.noise.double().expand(len(y))
        for piece in torch.split(torch.arange(len(y), device=x.device), _CHUNK):
            points = x[piece]
            joint = form.extended(points)
            cross = joint.block(own, slice(len(z), joint.size))
            a = torch.linalg.solve_triangular(factor, cross, upper=False) / noise[piece].sqrt()
            precision.addmm_(a, a.T)
            weighted += a @ ((y[piece] - model.mean_module(points)).double() / noise[piece].sqrt())
        root = cholesky_factor(precision)
        inverse = torch.cholesky_inverse(root)
        distribution = model.variational_strategy._variational_distribution
        distribution.variational_mean.copy_(torch.cholesky_solve(weighted[:, None], root)[:, 0])
        distribution.chol_variational_covar.copy_(cholesky_factor((inverse + inverse.T) / 2))


def lower_bound(model: VariationalModel, x: Tensor, y: Tensor) -> float:
    """The evidence lower bound of all points (Hensman et al. 2013, Eq. 4), in float64 from float64 predictions."""
    at = VariationalPosterior(model, model.likelihood)
    with torch.no_grad():
        mean, variance = at.mean(x).double(), at.variance(x).double()
        noise = model.likelihood.noise.double()
        fit = -0.5 * (((y.double() - mean).square() + variance) / noise + (2.0 * math.pi * noise).log()).sum()
        m, root = model.whitened_mean.double(), model.whitened_root.double()
        log_det = 2.0 * root.diagonal().abs().log().sum()
        divergence = 0.5 * (m.square().sum() + root.square().sum() - len(m) - log_det)  # KL(q(v) || N(0, I))
        return float(fit - divergence)
