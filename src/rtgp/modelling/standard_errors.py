"""Standard errors of fitted hyperparameters, from the average-information matrix (Gilmour, Thompson and Cullis 1995).

The average of observed and expected information, A_ab = 1/2 (dK_a alpha)^T K_hat^-1 (dK_b alpha) with
alpha = K_hat^-1 (y - mean), has no trace in it: a handful of solves, no probes.
"""

from __future__ import annotations

import math

import gpytorch
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from rtgp.kernels import read_covariance
from rtgp.operators import make_from_form
from rtgp.solvers import LowRankPlusIdentity, Output, PivotedCholesky, WhitenedSystem, conjugate_gradients
from rtgp.solvers.cholesky import assemble, cholesky_factor
from rtgp.solvers.system import warn_of_rounding
from rtgp.training import hyperparameters
from rtgp.truncation import fixed

_MOST = 200  # parameters; a network's weights have no standard errors worth having


def standard_errors(model: gpytorch.models.ExactGP, cholesky: bool, seed: int) -> dict[str, float]:
    """A standard error for each entry of `hyperparameters(model)`, in its units; NaN where there is none to be had.

    They are asymptotic: they say how sharply the likelihood peaks, and nothing of a second peak. An infinite one
    belongs to a parameter that the likelihood does not depend on.
    """
    labels = list(hyperparameters(model))
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if sum(p.numel() for _, p in parameters) > _MOST:
        return dict.fromkeys(labels, math.nan)
    information = _information(model, cholesky, seed)
    known = [p for _, p in parameters if id(p) in information.places]
    index = torch.tensor([i for p in known for i in information.places[id(p)]], dtype=torch.long)
    variances = dict(zip(index.tolist(), _inverse_diagonal(information.matrix[index][:, index]).tolist(), strict=True))
    errors: list[float] = []
    for name, parameter in parameters:
        slopes = _slopes(model, name, parameter)
        places = information.places.get(id(parameter), [-1] * parameter.numel())
        entries = [
            slope * math.sqrt(variances[i]) if i >= 0 else math.nan for i, slope in zip(places, slopes, strict=True)
        ]
        errors += entries if len(entries) <= 64 else [math.nan]  # such a parameter is recorded by its norm
    return dict(zip(labels, errors, strict=True))


class _Information:
    def __init__(self, matrix: Tensor, places: dict[int, list[int]]) -> None:
        self.matrix = matrix  # (p, p), float64, in unconstrained units
        self.places = places  # id of a parameter -> its rows


def _information(model: gpytorch.models.ExactGP, cholesky: bool, seed: int) -> _Information:
    x, y = model.train_inputs[0], model.train_targets
    prior = model.forward(x)
    operator = make_from_form(read_covariance(prior.lazy_covariance_matrix))
    likelihood = model.likelihood
    noise = likelihood.noise if isinstance(likelihood, FixedNoiseGaussianLikelihood) else likelihood.noise.reshape(())
    system = WhitenedSystem(operator, noise)
    warn_of_rounding(system)
    solve = _Solve(system, cholesky, seed)
    residual = (y - prior.mean).detach()[:, None].to(system.dtype)
    alpha = system.whiten(solve(system.whiten(residual)))  # (n, 1)

    columns = [operator.derivative_matmul(alpha)[:, :, 0].T]  # dK_a alpha, (n, p)
    places: dict[int, list[int]] = {}
    count = 0
    for parameter in operator.hyperparameters:
        places[id(parameter)] = list(range(count, count + parameter.numel()))
        count += parameter.numel()
    if not isinstance(likelihood, FixedNoiseGaussianLikelihood):
        raw = likelihood.noise_covar.raw_noise
        if raw.requires_grad:
            (slope,) = torch.autograd.grad(likelihood.noise.sum(), raw)
            columns.append(alpha * float(slope))
            places[id(raw)], count = [count], count + 1
    mean = model.mean_module.constant
    if mean.requires_grad:
        columns.append(torch.ones_like(alpha))
        places[id(mean)], count = [count], count + 1
    derivatives = system.whiten(torch.cat(columns, dim=1))
    matrix = 0.5 * derivatives.double().T @ solve(derivatives).double()
    if mean.requires_grad:  # the mean's information is 1^T K_hat^-1 1, and none of it is shared
        own = 2.0 * matrix[-1, -1]
        matrix[-1], matrix[:, -1] = 0.0, 0.0
        matrix[-1, -1] = own
    return _Information((0.5 * (matrix + matrix.T)).cpu(), places)


class _Solve:
    """A^-1 v for the whitened system A, by Cholesky or by conjugate gradients to working precision."""

    def __init__(self, system: WhitenedSystem, cholesky: bool, seed: int) -> None:
        self._system = system
        self._factor = cholesky_factor(assemble(system)) if cholesky else None
        if not cholesky:
            generator = torch.Generator().manual_seed(seed)
            low_rank = PivotedCholesky().factor(system.kernel_diagonal(), system.kernel_rows, 20, generator)
            self._preconditioner = LowRankPlusIdentity(low_rank, system.dtype)

    def __call__(self, v: Tensor) -> Tensor:
        if self._factor is not None:
            return torch.cholesky_solve(v, self._factor)
        outputs = [Output(k, None) for k in range(v.shape[1])]
        run = conjugate_gradients(self._system.matmul, v, fixed(None), outputs, self._preconditioner)
        return run.solutions


def _inverse_diagonal(matrix: Tensor) -> Tensor:
    """The diagonal of the inverse; infinity for what the matrix knows nothing of, rather than an error."""
    scale = matrix.diagonal().clamp_min(0.0).sqrt()
    known = scale > 0
    inverse = torch.full_like(scale, math.inf)
    unit = matrix[known][:, known] / scale[known] / scale[known][:, None]
    eigenvalues, vectors = torch.linalg.eigh(unit)
    inverse[known] = (vectors.square() / eigenvalues.clamp_min(1e-14)).sum(1) / scale[known].square()
    return inverse


def _slopes(model: gpytorch.Module, name: str, parameter: Tensor) -> list[float]:
    """|d constrained / d raw| of each entry."""
    path, _, own = name.rpartition(".")
    owner = model.get_submodule(path)
    constraint = owner.constraint_for_parameter_name(own) if isinstance(owner, gpytorch.Module) else None
    if constraint is None:
        return [1.0] * parameter.numel()
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(constraint.transform(parameter).sum(), parameter)
    return [abs(slope) for slope in slopes.reshape(-1).tolist()]
