"""`rtgp.posterior`: predictions from a trained model, whatever its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, overload, runtime_checkable

if TYPE_CHECKING:
    from rtgp.posterior._marginal import MarginalPosterior
    from rtgp.posterior._predict import Posterior
    from rtgp.posterior._settings import PosteriorSettings, PredictionSettings


@runtime_checkable
class OwnPosterior(Protocol):
    """A model that is no exact Gaussian process and knows how to predict: SVGP's and POE's in `rtgp._baselines`."""

    def make_posterior(self, likelihood: Any, settings: PosteriorSettings) -> MarginalPosterior: ...


@overload
def posterior(model: OwnPosterior, likelihood: Any, *, seed: int = 0) -> MarginalPosterior: ...


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
    _settings: PredictionSettings | None = None,
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
    _settings: PredictionSettings | None = None,
) -> Posterior | MarginalPosterior:
    """Predictions from a GPyTorch model, given its training data.

    New points are X (m, d), or batches of sets of them (..., m, d). Results are differentiable in X where it requires a
    gradient, and in nothing else. They come in the model's dtype, on the device of the points asked about, and in the
    units of its training targets; for a BoTorch model with an outcome transform, in the units of Y, as its own
    `posterior` has them. The model stays in the mode it is in, and no GPyTorch setting is changed. The models of SVGP
    and POE predict at plain points and without gradients. So does a model of several outputs that share one kernel and
    noise (`rtgp.SharedOutputs`): its means are (t, m) and its samples (n, t, m), while the variance and the covariance
    are those of each output, and come once.

    Parameters
    ----------
    model : gpytorch.models.ExactGP
        A trained model. The models of SVGP and POE are taken too; of the arguments below they use none.
    likelihood : gpytorch likelihood
        A `GaussianLikelihood` or a `FixedNoiseGaussianLikelihood`.
    method : {"auto", "cholesky", "cg"}
        "auto" takes Cholesky up to 8,000 points (70,000 on a GPU) where its two n x n matrices fit, and CG beyond.
    tolerance : float
        Of CG. For the mean, the relative residual of its linear system. For exact variances and covariances, an upper
        bound of their relative error.
    variance : {"auto", "exact", "lanczos"}
        "auto" is exact too, but for very many new points: their variances come from their nearest training points and
        are checked at a sample. "lanczos" is fast and never underestimates.
    rank : int, optional
        The rank of "lanczos".
    seed : int
        The seed of the preconditioner's pivots and of the first Lanczos vector.
    operator : str
        How CG multiplies with the kernel matrix, as in `rtgp.operators.make`. "sharded" spreads the work over the ranks
        of `rtgp.distributed.start()`; every rank must then ask the same questions in the same order.
    neighbours : int, optional
        Predict each point from this many of its nearest training points alone. This is an approximation, whose
        variances are never too small. The other arguments have no meaning then.

    Returns
    -------
    Posterior or MarginalPosterior
        It gives means, variances, covariances and samples at new points.

    Examples
    --------
    >>> import numpy as np, torch, rtgp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> gp = rtgp.GPRegressor(standardize=False, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> prediction = rtgp.posterior(gp.model_, gp.likelihood_)
    >>> mean = prediction.mean(torch.tensor([[0.25]]))
    >>> bool(abs(mean - np.sin(1.5)) < 0.01)
    True
    """
    # With the first prediction, not with `import rtgp`: a training does without.
    from rtgp._objectives.reading import has_data, own_data
    from rtgp.posterior._neighbours import NeighbourPosterior
    from rtgp.posterior._outputs import OutputsPosterior
    from rtgp.posterior._predict import Posterior
    from rtgp.posterior._settings import PosteriorSettings, PredictionSettings

    internal = _settings or PredictionSettings()
    settings = PosteriorSettings(method, tolerance, variance, rank, seed, operator, internal)
    if neighbours is not None:
        return NeighbourPosterior(model, likelihood, neighbours)
    if isinstance(model, OwnPosterior):
        return model.make_posterior(likelihood, settings)
    several = own_data(model)[1].ndim == 2 if has_data(model) else False
    return (OutputsPosterior if several else Posterior)(model, likelihood, settings)
