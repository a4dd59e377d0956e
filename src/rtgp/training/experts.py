"""Training of POE: all experts at once, exact and in float64, as one batch where it costs O(m^3).

The experts' losses are added and no parameter is shared, so that Adam, which works on each coordinate by itself, trains
every expert as if it were alone.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from rtgp.baselines import POE
from rtgp.errors import NotPositiveDefiniteError
from rtgp.kernels import read_covariance
from rtgp.models import ExpertsModel
from rtgp.objectives import Batch, EstimateStats
from rtgp.objectives.protocol import surrogate_loss
from rtgp.operators import make_from_form
from rtgp.training.coordinates import logarithmic
from rtgp.training.errors import TrainingError
from rtgp.training.history import History, hyperparameters, make_row
from rtgp.training.progress import Progress
from rtgp.training.result import FitResult, FitStatus
from rtgp.training.schedule import Schedule

LEARNING_RATE = 0.1
STEPS = 60
_GROUP = 2**24  # entries of the covariance matrices in one batch: 16 experts of 1,024 points, 128 MiB; four such arrays


def train_experts(
    model: ExpertsModel,
    method: POE,
    steps: int | None,
    learning_rate: float | None,
    start: str,
    progress: bool = False,
) -> FitResult:
    """Maximise the marginal likelihood of every expert, in place. `start`: where they begin, in words."""
    began = time.perf_counter()
    steps = STEPS if steps is None else steps
    schedule = Schedule.of("cosine", LEARNING_RATE if learning_rate is None else learning_rate, steps)
    size = len(model.experts[0].train_targets)
    each = max(1, _GROUP // size**2)
    groups = [_Group(model.experts[k : k + each]) for k in range(0, len(model), each)]
    optimizer = torch.optim.Adam([leaf for group in groups for leaf in group.leaves])
    history = History()
    with Progress(progress, steps) as bar:
        for step in range(steps):
            rate = schedule.rate(step)
            assert rate is not None
            values = median_hyperparameters(model)
            losses = torch.cat([group.evaluate() for group in groups])
            norm = math.sqrt(sum(float(p.grad.square().sum()) for g in groups for p in g.leaves if p.grad is not None))
            if not (math.isfinite(norm) and bool(torch.isfinite(losses).all())):
                raise TrainingError(
                    "Expected a finite loss and gradient of every expert. Got NaN or infinity: lower the learning rate."
                )
            for options in optimizer.param_groups:
                options["lr"] = rate
            optimizer.step()
            for group in groups:
                group.push()
            stats = EstimateStats("poe", torch.float64, math.nan, math.nan, math.nan, 0.0)
            seconds = time.perf_counter() - began
            row = make_row(step, float(losses.mean()), 0.0, norm, math.nan, stats, rate, seconds, values)
            history.append(row)
            bar.update(row, steps)
    final = torch.cat([group.losses() for group in groups])
    model.eval()
    return FitResult(
        history=history,
        status=FitStatus.STEPS,
        method=method,
        method_reason="asked for",
        steps=steps,
        seconds=time.perf_counter() - began,
        loss=float(final.mean()),
        loss_error=0.0,
        start=start,
        message=f"all {steps} steps were taken by each of {len(model)} experts of {size} points; the loss is the mean "
        "of theirs, each on its own points",
        optimizer="adam",
    )


def median_hyperparameters(model: ExpertsModel) -> dict[str, float]:
    """The median over experts of each hyperparameter."""
    found = [hyperparameters(expert) for expert in model]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


class _Group:
    """Experts of equal size: their covariance matrices are one batch, factored and inverted at once. Each kernel is
    evaluated and differentiated by itself, so that it need not know of batches."""

    def __init__(self, experts: Sequence[Any]) -> None:
        self._experts = list(experts)
        self._wide = [copy.deepcopy(expert).double().train() for expert in self._experts]
        self._parameters = [{name: p for name, p in e.named_parameters() if p.requires_grad} for e in self._wide]
        self._coordinates = [
            logarithmic(expert, name, parameter)
            for expert, parameters in zip(self._wide, self._parameters, strict=True)
            for name, parameter in parameters.items()
        ]
        self.leaves = [coordinate.leaf for coordinate in self._coordinates]

    def evaluate(self) -> Tensor:
        """The loss of each expert per point, (g,); gradients go to the leaves."""
        batches = [_read(expert) for expert in self._wide]
        losses, alpha, inverse = _solve(batches)
        weights = inverse.baddbmm_(alpha, alpha.mT, beta=0.5, alpha=-0.5)  # Eq. 2: d loss / d (K + noise)
        for expert, parameters, batch, weight, solve in zip(
            self._wide, self._parameters, batches, weights, alpha[:, :, 0], strict=True
        ):
            for parameter in parameters.values():
                parameter.grad = torch.zeros_like(parameter)
            kernel = make_from_form(batch.form, "tiled").contract(_blocks(weight))
            surrogate = surrogate_loss(kernel, weight.diagonal(), solve, batch)
            for _, module, prior, closure, _ in expert.named_priors():
                surrogate = surrogate - prior.log_prob(closure(module)).sum()
            torch.autograd.backward(surrogate / len(solve))
        for coordinate in self._coordinates:
            coordinate.pull_gradient()
        return losses

    def losses(self) -> Tensor:
        """The loss of each expert per point, (g,)."""
        with torch.no_grad():
            return _solve([_read(expert) for expert in self._wide])[0]

    def push(self) -> None:
        """Bring the experts to where training is."""
        for coordinate in self._coordinates:
            coordinate.push()
        with torch.no_grad():
            for expert, wide in zip(self._experts, self._wide, strict=True):
                for parameter, value in zip(expert.parameters(), wide.parameters(), strict=True):
                    parameter.copy_(value)


def _read(expert: Any) -> Batch:
    (x,), y = expert.train_inputs, expert.train_targets
    prior = expert.forward(x)
    noise = expert.likelihood.noise
    noise = noise if isinstance(expert.likelihood, FixedNoiseGaussianLikelihood) else noise.reshape(())
    return Batch(read_covariance(prior.lazy_covariance_matrix), noise, y - prior.mean)


def _blocks(matrix: Tensor) -> Callable[[slice, slice], Tensor]:
    return lambda rows, cols: matrix[rows, cols]


def _solve(batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor]:
    """The losses per point (g,), the solves K_hat^-1 r (g, m, 1) and the inverses (g, m, m); no gradients."""
    m = batches[0].form.size
    everything = slice(0, m)
    K_hat = torch.stack([batch.form.block(everything, everything) for batch in batches])
    K_hat.diagonal(dim1=1, dim2=2).add_(torch.stack([batch.noise.detach().expand(m) for batch in batches]))
    factor, info = torch.linalg.cholesky_ex(K_hat)
    if bool(info.any()):
        raise NotPositiveDefiniteError(
            f"The covariance of {int((info > 0).sum())} of {len(info)} experts is not positive definite in float64. "
            "Raise the lower bound of the noise, or lower the learning rate."
        )
    residual = torch.stack([batch.residual.detach() for batch in batches])
    alpha = torch.cholesky_solve(residual[:, :, None], factor)
    log_det = 2.0 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    losses = 0.5 * ((log_det + (residual * alpha[:, :, 0]).sum(1)) / m + math.log(2.0 * math.pi))
    return losses, alpha, torch.cholesky_inverse(factor)
