"""BoTorch models whose posterior goes by our solver where a Cholesky factor is too large."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from botorch.models import SingleTaskGP as BoTorchSingleTaskGP
from botorch.posteriors.posterior import Posterior as BoTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ExactGP
from gpytorch.settings import prior_mode
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from rtgp._objectives.reading import has_data, held_inputs, is_batch, own_data
from rtgp.botorch._fantasies import Fantasies
from rtgp.botorch._sampling import PathwisePosterior
from rtgp.errors import UnsupportedModelError
from rtgp.posterior import Paths, Posterior, PosteriorSettings


class SolvedModel(ExactGP):
    """In front of a BoTorch model with exact inference and one output; `wrap` makes such classes.

    Up to the number of points at which `rtgp.posterior` takes Cholesky, everything is BoTorch's own. Beyond,
    `model(X)`, and with it `posterior`, comes from `rtgp.posterior`: no n x n factor is made. Transforms, observation
    noise and posterior transforms stay BoTorch's in both.

    Parameters
    ----------
    train_inputs : Tensor
        As of the model's own class.
    train_targets : Tensor
        As of the model's own class.
    likelihood : gpytorch likelihood
        As of the model's own class.

    Attributes
    ----------
    posterior_settings : PosteriorSettings
        How the solver works, and from how many points on.
    pathwise_from : int
        Points of one set beyond which samples are paths: their joint covariance would take as many solves.

    Examples
    --------
    >>> import torch, rtgp.botorch
    >>> from botorch.models import SingleTaskGP
    >>> X = torch.rand(30, 2, dtype=torch.float64)
    >>> model = rtgp.botorch.wrap(SingleTaskGP(X, X.sum(1, keepdim=True)), method="cg")
    >>> isinstance(model, rtgp.botorch.SolvedModel), isinstance(model, SingleTaskGP), model.by_solver
    (True, True, True)
    >>> model.posterior(X[:3]).mean.shape, model.solver.report.method
    (torch.Size([3, 1]), 'cg')
    """

    plain: ClassVar[type[ExactGP]]  # the model's class without this one
    posterior_settings: PosteriorSettings = PosteriorSettings()
    pathwise_from: int = 1_000
    _held: Posterior | None = None
    _start: Tensor | None = None  # what the first solve for the mean starts at
    _fantasies: Fantasies | None = None
    _chosen: tuple[int, PosteriorSettings, bool] | None = None

    @property
    def by_solver(self) -> bool:
        """Whether this many points are beyond Cholesky. Batches that BoTorch has made of a small model are not."""
        if is_batch(self):
            return False
        x, settings = held_inputs(self), self.posterior_settings
        if self._chosen is None or self._chosen[0] != len(x) or self._chosen[1] is not settings:
            self._chosen = len(x), settings, settings.choose(len(x), x.device, x.dtype)[0] == "cg"
        return self._chosen[2]

    @property
    def solver(self) -> Posterior:
        """The `rtgp.posterior` that answers beyond Cholesky; its `report` says how."""
        held = self._held
        if held is None or not _same_data(held.model, self):
            # Of a twin that shares the parameters: the model does not hold itself, and memory goes with it.
            twin = shallow_copy(self, self.plain)
            held = Posterior(twin, twin.likelihood, self.posterior_settings, start=self._start, at_once=False)
            self._held, self._start = held, None
        return held

    def draw_paths(self, n: int, generator: torch.Generator | None = None, *, features: int | None = None) -> Paths:
        """Samples of the posterior that are functions, in the units of Y.

        Parameters
        ----------
        n : int
            How many.
        generator : torch.Generator, optional
            Where random numbers come from. By default torch's own generator.
        features : int, optional
            Random frequencies that stand for the prior, as in `Posterior.paths`.

        Returns
        -------
        Paths
            Functions of X, with input and outcome transforms inside.
        """
        if self._fantasies is not None:
            raise UnsupportedModelError(
                "Expected a model without fantasies. Paths of a fantasised one are not supported: draw them of the "
                "model that was fantasised, or condition it on observations without a batch."
            )
        self.eval()
        return self.solver.paths(n, generator, features=features)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain = self.training or kwargs or len(args) != 1 or prior_mode.on() or not has_data(self)
        if plain or not self.by_solver:
            return super().__call__(*args, **kwargs)
        X = args[0]
        if self._fantasies is None:
            mean, covariance = self.solver.moments_of_transformed(X)
        else:
            mean, covariance = self._fantasies.moments(self.solver.moments_of_transformed, X)
        return MultivariateNormal(mean, DenseLinearOperator(covariance))

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> BoTorchPosterior:
        """The posterior as BoTorch has it; samples at very many points are paths.

        Parameters
        ----------
        X : Tensor
            Points, (..., q, d).
        *args
            As of the model's own class.
        **kwargs
            As of the model's own class.

        Returns
        -------
        botorch.posteriors.Posterior
            In the units of Y.
        """
        many = X.shape[-2] > self.pathwise_from and not args and not any(_is_given(v) for v in kwargs.values())
        if many and self._fantasies is None and has_data(self) and self.by_solver:
            self.eval()
            return PathwisePosterior(self.solver, X)
        found: BoTorchPosterior = super().posterior(X, *args, **kwargs)
        return found

    @property
    def batch_shape(self) -> torch.Size:
        """The batch of fantasies, where there are any."""
        if self._fantasies is not None:
            return self._fantasies.batch_shape
        shape: torch.Size = super().batch_shape
        return shape

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Any:
        """The model with further observations.

        Beyond Cholesky, one set of them joins the training data, and the solve starts at what the last one found.
        Batches of sets (fantasies) stand beside them.

        Parameters
        ----------
        X : Tensor
            Points, (..., k, d).
        Y : Tensor
            Observations there, (..., k, 1).
        noise : Tensor, optional
            Their noise variances, of the shape of Y, where those of the training points are known.
        **kwargs
            As of the model's own class.

        Returns
        -------
        SolvedModel
            Another model; this one is left as it is.
        """
        given = {} if noise is None else {"noise": noise}
        if not self.by_solver:
            return super().condition_on_observations(X, Y, **given, **kwargs)
        self.eval()
        batched = X.ndim > 2 or Y.ndim > 2 or X.requires_grad or Y.requires_grad
        if not batched and self._fantasies is None:
            return super().condition_on_observations(X, Y, **given, **kwargs)
        transform = getattr(self, "outcome_transform", None)
        targets = Y if transform is None else transform(Y, X=X)[0]
        noise = None if noise is None else noise.squeeze(-1)
        return self._fantasised(self.transform_inputs(X), targets.squeeze(-1), noise)

    def get_fantasy_model(self, inputs: Any, targets: Tensor, **kwargs: Any) -> Any:
        """The model with further observations, given as GPyTorch has it.

        Parameters
        ----------
        inputs : Tensor or list of Tensor
            Points that have gone through the input transform, (..., k, d).
        targets : Tensor
            Observations that have gone through the outcome transform, (..., k).
        **kwargs
            `noise`, their variances (..., k), where those of the training points are known.

        Returns
        -------
        SolvedModel
            Another model; this one is left as it is.
        """
        if not self.by_solver:
            return super().get_fantasy_model(inputs, targets, **kwargs)
        x = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        if x.ndim > 2 or targets.ndim > 1 or x.requires_grad or self._fantasies is not None:
            return self._fantasised(x, targets, kwargs.get("noise"))
        known = {name: value for name, value in kwargs.items() if name == "noise"}
        start = self.solver.weights
        made = shallow_copy(self, type(self))
        made.likelihood = self.likelihood.get_fantasy_likelihood(**known)
        held_x, held_y = held_inputs(self), own_data(self)[1]
        made.set_train_data(torch.cat([held_x, x.to(held_x)]), torch.cat([held_y, targets.to(held_y)]), strict=False)
        made._held, made._start = None, torch.cat([start, start.new_zeros(len(x), 1)])
        return made

    def _fantasised(self, x: Tensor, y: Tensor, noise: Tensor | None) -> Any:
        made = shallow_copy(self, type(self))
        made._fantasies = Fantasies.of(self.likelihood, x, y, noise, self._fantasies)
        made._held = self.solver
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files do not take what predictions are made from."""
        return {**self.__dict__, "_held": None, "_start": None, "prediction_strategy": None}


class SingleTaskGP(SolvedModel, BoTorchSingleTaskGP):  # type: ignore[misc]
    """BoTorch's SingleTaskGP of one output, with a posterior by our solver beyond some thousand points.

    Parameters
    ----------
    train_X : Tensor
        Inputs, (n, d).
    train_Y : Tensor
        Observations, (n, 1).
    *args
        As of BoTorch's class.
    **kwargs
        As of BoTorch's class.

    Examples
    --------
    >>> import torch
    >>> from rtgp.botorch import SingleTaskGP
    >>> X = torch.rand(30, 2, dtype=torch.float64)
    >>> model = SingleTaskGP(X, X.sum(1, keepdim=True))
    >>> model.posterior(torch.rand(5, 3, 2, dtype=torch.float64)).mean.shape
    torch.Size([5, 3, 1])
    """

    plain = BoTorchSingleTaskGP

    def __init__(self, train_X: Tensor, train_Y: Tensor, *args: Any, **kwargs: Any) -> None:
        if train_X.ndim != 2 or train_Y.shape[-1] != 1:
            raise UnsupportedModelError(
                "Expected train_X of shape (n, d) and train_Y of shape (n, 1): SingleTaskGP of rtgp.botorch has one "
                f"output and no batch. Got {tuple(train_X.shape)} and {tuple(train_Y.shape)}: make one model for each "
                "output, in a ModelListGP."
            )
        super().__init__(train_X, train_Y, *args, **kwargs)


def shallow_copy(model: Any, kind: Any) -> Any:
    """A model of the class `kind` that shares modules, parameters and data with another."""
    made = kind.__new__(kind)
    made.__dict__.update(model.__dict__)
    for name in ("_modules", "_parameters", "_buffers"):
        made.__dict__[name] = dict(made.__dict__[name])
    made.__dict__["prediction_strategy"] = None
    return made


def _same_data(one: Any, other: Any) -> bool:
    return held_inputs(one) is held_inputs(other) and own_data(one)[1] is own_data(other)[1]


def _is_given(value: Any) -> bool:
    return isinstance(value, Tensor) or bool(value)
