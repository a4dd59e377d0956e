"""The noise of a likelihood, as `_objectives/reading.py` needs it: a diagonal, and what of it is none.

A multitask likelihood may have noise that is correlated between the tasks of a point, I kron F F^T + sigma^2 I. The
first part is then read as a part of the covariance, which leaves a diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, MultitaskGaussianLikelihood
from gpytorch.likelihoods.hadamard_gaussian_likelihood import HadamardGaussianLikelihood
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor

from rtgp._kernels import KernelForm, Product
from rtgp._kernels.positions import Same, Table
from rtgp._kernels.read_operator import Position, picked
from rtgp.errors import InputError, UnsupportedModelError


@dataclass(frozen=True)
class Noise:
    """variances: (*batch, N), or (*batch, 1) where all are the same, with their autograd history.
    between_tasks: (*batch, t, t), the covariance of the noise of one point's tasks beside that; None: there is none.
    """

    variances: Tensor
    between_tasks: Tensor | None = None

    def at(self, position: Position, size: int) -> Tensor:
        """() or (N,): of one model."""
        own = picked(self.variances, position, 1)
        return own.reshape(()) if own.numel() == 1 else own.expand(size)

    def form_at(self, position: Position, point: Tensor, task: Tensor, dtype: torch.dtype) -> KernelForm | None:
        """The part between tasks, of rows that belong to a point and a task, (N,) each."""
        if self.between_tasks is None:
            return None
        return Product([Same(point, dtype), Table(picked(self.between_tasks, position, 2), task, dtype)])


def read_noise(
    model: Any, likelihood: Any, dist: MultivariateNormal, params: tuple[Any, ...], kwargs: dict[str, Any]
) -> Noise:
    """That of the training points of a model whose output is `dist`."""
    tasks = isinstance(dist, MultitaskMultivariateNormal)
    if tasks != isinstance(likelihood, MultitaskGaussianLikelihood):
        raise UnsupportedModelError(
            "Expected a MultitaskGaussianLikelihood with a MultitaskMultivariateNormal, and another Gaussian "
            f"likelihood with a MultivariateNormal. Got {type(likelihood).__name__} with {type(dist).__name__}: take "
            f"{'gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks)' if tasks else 'GaussianLikelihood()'}."
        )
    if tasks:
        return _between_tasks(likelihood, dist)
    known = known_noise(likelihood)
    if known is not None and "noise" not in kwargs:
        check_noise_shape(known, dist.mean.shape)
    params = params or arguments_of(model, likelihood)
    covariance = likelihood._shaped_noise_covar(dist.mean.shape, *params, **kwargs)
    return Noise(_diagonal(covariance))


def _diagonal(covariance: Any) -> Tensor:
    if isinstance(covariance, ConstantDiagLinearOperator):
        values: Tensor = covariance.diag_values
        return values
    diagonal: Tensor = covariance.diagonal(dim1=-1, dim2=-2)
    return diagonal


def _between_tasks(likelihood: MultitaskGaussianLikelihood, dist: MultitaskMultivariateNormal) -> Noise:
    if dist.event_shape[-1] != likelihood.num_tasks:
        raise InputError(
            f"Expected as many tasks in the likelihood as in the model's output, {dist.event_shape[-1]}. Got "
            f"num_tasks={likelihood.num_tasks}."
        )
    if not likelihood.has_task_noise or likelihood.rank == 0:
        shape, interleaved = dist.mean.shape, dist._interleaved
        covariance = likelihood._shaped_noise_covar(
            shape, add_noise=likelihood.has_global_noise, interleaved=interleaved
        )
        return Noise(_diagonal(covariance))
    between: Tensor = likelihood.task_noise_covar
    if likelihood.has_global_noise:
        return Noise(likelihood.noise, between)
    eigenvalues = torch.linalg.eigvalsh(between.detach())  # ascending
    least = eigenvalues[..., 0]
    # An eigenvalue of 0 comes out as rounding of the largest, of either sign.
    rounding = likelihood.num_tasks * torch.finfo(between.dtype).eps * eigenvalues[..., -1]
    if not bool((least > rounding).all()):
        raise InputError(
            "Expected noise between tasks of full rank where there is no global noise. Got a task_noise_covar with "
            f"eigenvalues from {float(least.min()):.2g}: take has_global_noise=True, or rank=num_tasks."
        )
    own = 0.5 * least[..., None]  # (*batch, 1), without history: what is added here is taken there
    identity = torch.eye(likelihood.num_tasks, dtype=between.dtype, device=between.device)
    return Noise(own, between - own[..., None] * identity)


def known_noise(likelihood: Any) -> Tensor | None:
    """The noise variances (n,) that are known of each training point; None where one is learned."""
    if not isinstance(likelihood, FixedNoiseGaussianLikelihood):
        return None
    noise: Tensor = likelihood.noise_covar.noise
    return noise


def check_noise_shape(noise: Tensor, shape: torch.Size) -> None:
    n = shape[-1]
    try:
        common = torch.broadcast_shapes(noise.shape, shape)  # type: ignore[no-untyped-call]
        fits = noise.shape[-1] == n and common == shape
    except (RuntimeError, IndexError):
        fits = False
    if not fits:
        raise InputError(
            f"Expected one noise variance, or one for each of the {n} training points. Got shape "
            f"{tuple(noise.shape)}: make the likelihood with noise of shape {tuple(shape)}, and without a batch shape "
            "that the model does not have."
        )


def arguments_of(model: Any, likelihood: Any) -> tuple[Any, ...]:
    """What the likelihood is called with beside the model's output, where that tells the noise: the inputs, or the
    tasks. GPyTorch's users pass it to the marginal likelihood themselves."""
    by_task = isinstance(likelihood, HadamardGaussianLikelihood)
    if not by_task and not isinstance(getattr(likelihood, "noise_covar", None), HeteroskedasticNoise):
        return ()
    inputs = list(model.train_inputs or ())
    if model.training and hasattr(model, "transform_inputs"):  # BoTorch
        inputs = [model.transform_inputs(x) for x in inputs]
    if not by_task:
        return tuple(inputs)
    tasks = inputs if len(inputs) == 1 else [x for x in inputs if not x.is_floating_point() and x.shape[-1] == 1]
    if len(tasks) != 1:
        raise InputError(
            "Expected to know the task of each point, which HadamardGaussianLikelihood needs. None of the inputs is "
            "one column of integers: pass the tasks, as in mll(model(*train_inputs), train_y, train_tasks)."
        )
    return (tasks[0],)
