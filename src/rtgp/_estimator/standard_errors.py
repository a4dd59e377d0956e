"""Standard errors of fitted hyperparameters, from the average-information matrix (Gilmour, Thompson and Cullis 1995).

It has no trace in it: a handful of solves, no probes.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from rtgp._methods import RRCG, Cholesky, Method
from rtgp._mll import MarginalLogLikelihood
from rtgp._objectives.reading import own_data
from rtgp._precision import SILENT
from rtgp.errors import RTGPError
from rtgp.training import choose_method, hyperparameters
from rtgp.training._history import LARGEST
from rtgp.training._switch_to_cholesky import exact_possible

_log = logging.getLogger("rtgp")


@dataclass(frozen=True)
class ErrorSettings:
    """How standard errors are computed. Chosen, not fitted.

    Attributes
    ----------
    most_parameters : int
        With more parameters there are no standard errors; those of a network's weights would mean nothing.
    tolerance : float
        Tolerance of the solves. An asymptotic figure needs no more.
    iterations : int
        Iterations after which the solves end in any case.
    """

    most_parameters: int = 200
    tolerance: float = 1e-2
    iterations: int = 500


DEFAULT = ErrorSettings()


def standard_errors(
    model: gpytorch.models.ExactGP,
    cholesky: bool,
    seed: int,
    operator: str = "auto",
    settings: ErrorSettings = DEFAULT,
) -> dict[str, float]:
    """A standard error for each entry of `hyperparameters(model)`, in its units; NaN where there is none.

    They are asymptotic: they tell how sharply the likelihood peaks, and nothing of a second peak. An infinite one
    belongs to a parameter that the likelihood does not depend on. `operator` is that of the solves, where they are not
    by Cholesky.
    """
    labels = list(hyperparameters(model))
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not 0 < sum(p.numel() for _, p in parameters) <= settings.most_parameters:
        return dict.fromkeys(labels, math.nan)
    variances = _robust_variances(model, Cholesky() if cholesky else RRCG(operator=operator), seed, settings)
    if variances is None:
        return dict.fromkeys(labels, math.nan)
    errors: list[float] = []
    for name, parameter in parameters:
        roots = variances[id(parameter)].sqrt().tolist()
        entries = [slope * root for slope, root in zip(_slopes(model, name, parameter), roots, strict=True)]
        errors += entries if len(entries) <= LARGEST else [math.nan]  # recorded by its norm, which has no error
    return dict(zip(labels, errors, strict=True))


def _robust_variances(
    model: gpytorch.models.ExactGP, method: Method, seed: int, settings: ErrorSettings
) -> dict[int, Tensor] | None:
    """By the method; by Cholesky where its solves fail or that is the cheaper; None where neither can be had. An error
    here must not cost anyone the training that came before it."""
    x, _ = own_data(model)
    exact = Cholesky()
    if exact_possible(method, x.shape[0], x.device):
        cheap = choose_method(x.shape[0], x.shape[1], x.device).method.exact
        methods: list[Method] = [exact, method] if cheap else [method, exact]
    else:
        methods = [method]
    for one in methods:
        try:
            return _variances(model, one, seed, settings)
        except RTGPError as error:
            _log.info("No standard errors of the hyperparameters by %s: %s", type(one).__name__, error)
    return None


def _variances(model: gpytorch.models.ExactGP, method: Method, seed: int, settings: ErrorSettings) -> dict[int, Tensor]:
    """id of a parameter -> the variance of each of its entries, in unconstrained units."""
    generator = torch.Generator().manual_seed(seed)
    mll = MarginalLogLikelihood(model.likelihood, model, method, generator, _notices=SILENT)  # training has said it
    trained = [parameter for parameter in mll.parameters() if parameter.requires_grad]
    x, y = own_data(model)
    with mll, torch.enable_grad():
        prior = model.forward(x)  # in eval mode, too
        covered = mll.knows_information(prior, y, prior=True)
        tolerance, most = settings.tolerance, settings.iterations
        found = mll.evaluate(prior, y, information=tolerance, iterations=most, once=True, prior=True)
    information = found.information
    assert information is not None
    variances = _inverse_diagonal(information * y.numel())
    if not covered:  # nothing is known of what acts through the inputs of the kernel
        variances[variances.isinf()] = math.nan
    pieces = torch.split(variances, [p.numel() for p in trained])
    return dict(zip(map(id, trained), pieces, strict=True))


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
