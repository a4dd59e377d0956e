"""`rtgp.botorch.wrap`: a BoTorch model as one that our solver serves."""

from __future__ import annotations

import functools
from typing import Any, Literal

from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model_list_gp_regression import ModelListGP
from gpytorch.models import ExactGP

from rtgp._objectives.reading import check_model
from rtgp.botorch._model import SolvedModel, shallow_copy
from rtgp.errors import UnsupportedModelError
from rtgp.posterior import PosteriorSettings

_SUPPORTED = (
    "a BoTorch model with exact inference, one output, no batch and Gaussian noise, such as SingleTaskGP, or a "
    "ModelListGP of such"
)


def wrap(
    model: Any,
    *,
    method: Literal["auto", "cholesky", "cg"] = "auto",
    tolerance: float = 1e-4,
    seed: int = 0,
    operator: str = "auto",
) -> Any:
    """A model with the same parameters and data, whose posterior needs no n x n factor beyond some thousand points.

    It is a model of the same class, and everything of BoTorch's works with it. Up to 8,000 points on a CPU (70,000 on a
    GPU) it is BoTorch's own, with its cached Cholesky factor. Beyond, `posterior`, fantasies and Matheron paths go by
    `rtgp.posterior`.

    Parameters
    ----------
    model : botorch.models.model.Model
        SingleTaskGP or another model with exact inference, one output and Gaussian noise; or a ModelListGP of such. It
        is left as it is. The parameters are shared: train either, before or after.
    method : {"auto", "cholesky", "cg"}
        "auto": by the number of points. "cholesky": always BoTorch's own. "cg": always our solver.
    tolerance : float
        Of the solver: the relative error of variances, and of the gradients that are made of them.
    seed : int
        Of the preconditioner's pivots.
    operator : str
        How the solver multiplies with K, as in `rtgp.operators.make`.

    Returns
    -------
    botorch.models.model.Model
        The wrapped model.

    Raises
    ------
    rtgp.errors.UnsupportedModelError
        For several outputs in one model, batches, fully Bayesian models and likelihoods that are not Gaussian.

    Examples
    --------
    >>> import torch, rtgp.botorch
    >>> from botorch.acquisition import LogExpectedImprovement
    >>> from botorch.models import SingleTaskGP
    >>> X = torch.rand(30, 2, dtype=torch.float64)
    >>> model = rtgp.botorch.wrap(SingleTaskGP(X, -X.sum(1, keepdim=True)), method="cg")
    >>> LogExpectedImprovement(model, best_f=-0.2)(X[:3, None]).shape
    torch.Size([3])
    """
    settings = PosteriorSettings(method, tolerance, "auto", None, seed, operator)
    return _wrapped(model, settings)


def _wrapped(model: Any, settings: PosteriorSettings) -> Any:
    if isinstance(model, ModelListGP):
        return ModelListGP(*(_wrapped(one, settings) for one in model.models))
    name = type(model).__name__
    if getattr(model, "_is_fully_bayesian", False) or getattr(model, "_is_ensemble", False):
        raise UnsupportedModelError(
            f"Expected {_SUPPORTED}. Got {name}, which is a batch of models, one for each sample of the "
            "hyperparameters: use it as it is, or take a SingleTaskGP with the same priors."
        )
    if not (isinstance(model, GPyTorchModel) and isinstance(model, ExactGP)):
        raise UnsupportedModelError(f"Expected {_SUPPORTED}. Got {name}: use it as it is.")
    if model.num_outputs != 1:
        raise UnsupportedModelError(
            f"Expected {_SUPPORTED}. Got {name} with {model.num_outputs} outputs: "
            "botorch.models.converter.batched_to_model_list(model) makes a ModelListGP of one model for each."
        )
    if len(model.batch_shape) > 0:
        raise UnsupportedModelError(
            f"Expected {_SUPPORTED}. Got {name} of batch shape {tuple(model.batch_shape)}: make one model for each."
        )
    check_model(model, model.likelihood, "rtgp.botorch.wrap(model)")
    made = shallow_copy(model, type(model) if isinstance(model, SolvedModel) else _class_of(type(model)))
    made.posterior_settings, made._held, made._chosen = settings, None, None
    return made


@functools.cache
def _class_of(plain: Any) -> Any:
    words = {"plain": plain, "__reduce__": _reduce, "__module__": __name__, "__doc__": plain.__doc__}
    return type(f"Solved{plain.__name__}", (SolvedModel, plain), words)


def _reduce(self: SolvedModel) -> tuple[Any, ...]:
    """Copies and pickles: a class made here is found again by the one that it stands in front of."""
    return _empty, (self.plain,), self.__getstate__()


def _empty(plain: Any) -> Any:
    kind = _class_of(plain)
    return kind.__new__(kind)
