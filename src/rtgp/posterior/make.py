"""`rtgp.posterior`: predictions from a trained model, whatever its kind."""

from __future__ import annotations

from typing import Any, Literal, overload

from rtgp.models import ExpertsModel, VariationalModel
from rtgp.posterior.experts import ExpertsPosterior
from rtgp.posterior.marginal import MarginalPosterior
from rtgp.posterior.neighbours import NeighbourPosterior
from rtgp.posterior.predict import Posterior
from rtgp.posterior.settings import PosteriorSettings
from rtgp.posterior.variational import VariationalPosterior


@overload
def posterior(model: VariationalModel | ExpertsModel, likelihood: Any, *, seed: int = 0) -> MarginalPosterior: ...


@overload
def posterior(
    model: Any, likelihood: Any, *, neighbours: int, seed: int = 0, operator: str = "auto"
) -> MarginalPosterior: ...


@overload
def posterior(
    model: Any,
    likelihood: Any,
    *,
    method: Literal["auto", "cholesky", "cg"] = "auto",
    tolerance: float = 1e-4,
    variance: Literal["auto", "exact", "lanczos"] = "auto",
    rank: int | None = None,
    seed: int = 0,
    operator: str = "auto",
) -> Posterior: ...


def posterior(
    model: Any,
    likelihood: Any,
    *,
    method: Literal["auto", "cholesky", "cg"] = "auto",
    tolerance: float = 1e-4,
    variance: Literal["auto", "exact", "lanczos"] = "auto",
    rank: int | None = None,
    seed: int = 0,
    operator: str = "auto",
    neighbours: int | None = None,
) -> Posterior | MarginalPosterior:
    """What a GPyTorch model (an ExactGP with a Gaussian likelihood) says of new points, given its training data.

    The arguments are those of `PosteriorSettings`. Results come without gradients, in the model's dtype and in the
    units of its training targets, on the device of the points asked about. The model stays in the mode it is in, and no
    GPyTorch setting is changed. The models of SVGP and POE predict through the same functions; they have no use for
    the arguments.

    neighbours: predict each point from so many of its nearest training points alone. An approximation, whose variances
    are never too small; the other arguments have no meaning then.
    """
    settings = PosteriorSettings(method, tolerance, variance, rank, seed, operator)
    if neighbours is not None:
        return NeighbourPosterior(model, likelihood, neighbours)
    if isinstance(model, VariationalModel):
        return VariationalPosterior(model, likelihood)
    if isinstance(model, ExpertsModel):
        return ExpertsPosterior(model, likelihood, settings)
    return Posterior(model, likelihood, settings)
