"""`rtgp.GPRegressor`: a Gaussian process as a scikit-learn estimator."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rtgp._estimator.arguments import refuse_others, seed_from, tensor_of, working_device, working_dtype
from rtgp._estimator.beginning import Beginning
from rtgp._estimator.checked import CheckedData
from rtgp._estimator.fitting import Data, Model, Training, hyperparameters_of, reference, train_model
from rtgp._estimator.kernel_building import kernel_from_words
from rtgp._estimator.likelihood import log_likelihood_of
from rtgp._estimator.model import KERNELS, check_kernel_setting, kernel_and_beginning
from rtgp._estimator.notebook import Shown
from rtgp._estimator.outputs import (
    INDEPENDENT,
    check_outputs_setting,
    check_shared_method,
    check_targets,
    fit_each,
    predict_each,
    sample_each,
    several_targets,
)
from rtgp._estimator.predicting import Predicted, predicted, sampled
from rtgp._estimator.preprocessing import (
    Preprocessing,
    check_noise,
    learn_preprocessing,
)
from rtgp._estimator.relevance import relevances
from rtgp._estimator.saving import load_model, save_model
from rtgp._estimator.with_likelihood import WithLikelihood
from rtgp._memory import enough_memory
from rtgp._methods import AnyMethod, resolve_method, spread_operator
from rtgp._objectives.reading import noise_level, own_data
from rtgp.datasets._dataset import Array
from rtgp.errors import SettingError
from rtgp.operators import is_sharded
from rtgp.posterior import MarginalPosterior, Posterior, posterior
from rtgp.training import FitInterrupted, FitResult, FitStatus, choose_method

Bounds = str | tuple[Any, Any] | None
_FEWER = "Predict fewer rows at a time; a covariance or joint samples need the square of their number"


class GPRegressor(Shown, CheckedData, WithLikelihood, RegressorMixin, BaseEstimator):
    """Gaussian process regression whose hyperparameters are those of the exact Gaussian process.

    Parameters
    ----------
    kernel : str, gpytorch.kernels.Kernel or a kernel of scikit-learn
        "rbf", "matern12", "matern32" or "matern52": scaled, with one lengthscale for each input. Or words such as
        "rbf + periodic(day)": kernels ("rq", "periodic" and "linear" too) combined by `+` and `*`, each with its
        columns in brackets or for all of them. A periodic kernel of one column begins at the highest peak of its
        periodogram, or at "period=" in the unit of the column. A kernel object is copied, never trained in place; it
        sees all input columns, in working units (see `standardize`), and starts from its own values. A kernel of
        scikit-learn is translated. A WhiteKernel in it is the noise; without one a noise is learned all the same.
    method : str or settings object
        "auto", "cholesky", "cg", "rr-cg", "rff", "ss-rff", "svgp", "poe", "sggp", "vecchia", or an object such as
        `rtgp.RRCG()`. "auto" depends on the number of rows and columns and on the device; `method_` and
        `method_reason_` tell. All but "svgp" and "poe" train the hyperparameters of an exact Gaussian process. All but
        these and "vecchia", which takes the nearest training points only, predict from it.
    steps : int, optional
        The largest number of steps of training. By default the method decides.
    learning_rate : float, optional
        The step size of training. By default the method decides. L-BFGS, which trains by Cholesky, has none.
    device : str or torch.device
        "auto" takes a GPU where there is one. Or a device of torch, such as "cpu".
    dtype : {"float32", "float64"}
        Of training and prediction; `dtype_` tells which was used. Cholesky always works in float64. Where float32
        cannot serve, a `PrecisionWarning` says so and training goes on in float64.
    standardize : bool
        Whether inputs and target are brought to mean 0 and variance 1 first. Predictions are in original units either
        way. `kernel_`, `hyperparameters_` and `history_` are in working units: standardised ones.
    random_state : int, numpy.random.RandomState or None
        An int gives the same result in every call. Unlike elsewhere in scikit-learn, None takes new random numbers from
        the operating system: the global generator is left alone.
    verbose : bool
        Whether to show a progress bar.
    n_restarts : int
        Further starts, drawn at random and fitted on a subset first; the best few are then trained on all data. The
        best end is kept, and `fit_result_.ends` has the loss of each.
    outputs : {"independent", "shared"}
        Of a target with several columns. "independent": each has hyperparameters of its own, and is fitted on the rows
        in which it is not NaN. "shared": one kernel and one noise for all, at little more than the cost of one output;
        each has a mean of its own.
    lengthscale, outputscale, noise_variance : float, optional
        Where training begins, in working units. A lengthscale may be one for each input column. The first two belong to
        a kernel by name.
    lengthscale_bounds, outputscale_bounds, noise_bounds : "fixed" or (low, high), optional
        Between which they stay, in working units; `high` may be infinite, and bounds of the lengthscale may be one for
        each input column. By default the noise stays above 1e-6 of the target's variance, and the others are free.
    warm_start : bool
        Whether `fit` begins at the hyperparameters of the fit before, where the model still has these.

    Attributes
    ----------
    n_outputs_, estimators_
        How many outputs there are, and, where each has a model of its own, the GPRegressor of each. Then all attributes
        of a model below are lists with an entry for each output. The log marginal likelihood is the sum, and
        `noise_variance_` an array, (t,).
    theta_, theta_names_
        What `log_marginal_likelihood` is a function of.
    method_, method_reason_
        The settings used, and why.
    model_, likelihood_, kernel_
        The trained GPyTorch objects.
    fit_result_, history_
        How training went; `history_.to_frame()` is a table.
    hyperparameters_, hyperparameter_errors_ : dict of str to float
        Values and standard errors by name. The errors are asymptotic, from the average-information matrix, and computed
        when they are first asked for. They are NaN for SVGP, POE, sgGP and Vecchia, which do not maximise the
        likelihood. For POE the values are medians over the experts; `model_.experts` has each.
    relevance_ : dict of str to float
        By the name of an input: what it contributes to the predictions, as a part of the variance.
    log_marginal_likelihood_value_, log_marginal_likelihood_error_ : float
        log p(y | X) of all rows as given, in original units (natural logarithm, not divided by n), and its standard
        error: 0 where it is exact. For SVGP a lower bound. For POE and sgGP the log likelihoods of subsets, as if these
        were independent, scaled to all rows. For Vecchia that of each row given its neighbours.
    noise_variance_ : float
        Of a new observation, in original units. With known noise, the mean of what was given to `fit`.
    n_features_in_, feature_names_in_
        The number of inputs, and their names where X had some.
    dtype_, device_, seed_
        What was used.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> y = np.sin(6 * X[:, 0])
    >>> gp = rtgp.GPRegressor(kernel="rbf", random_state=0).fit(X, y)
    >>> mean, std = gp.predict(X[:3], return_std=True)
    >>> bool(np.abs(mean - y[:3]).max() < 0.05)
    True
    >>> gp.sample_y(X[:3], n_samples=5).shape
    (3, 5)
    >>> gp.method_reason_
    'n = 60 is at most 3000, up to which Cholesky is the cheaper on cpu for d = 1'
    """

    _relevance: dict[str, float] | None

    def __init__(
        self,
        kernel: str | Kernel = "rbf",
        method: str | AnyMethod = "auto",
        steps: int | None = None,
        learning_rate: float | None = None,
        device: str | torch.device = "auto",
        dtype: str = "float32",
        standardize: bool = True,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
        n_restarts: int = 0,
        outputs: str = "independent",
        lengthscale: float | Sequence[float] | None = None,
        outputscale: float | None = None,
        noise_variance: float | None = None,
        lengthscale_bounds: Bounds = None,
        outputscale_bounds: Bounds = None,
        noise_bounds: Bounds = None,
        warm_start: bool = False,
    ) -> None:
        self.kernel = kernel
        self.method = method
        self.steps = steps
        self.learning_rate = learning_rate
        self.device = device
        self.dtype = dtype
        self.standardize = standardize
        self.random_state = random_state
        self.verbose = verbose
        self.n_restarts = n_restarts
        self.outputs = outputs
        self.lengthscale = lengthscale
        self.outputscale = outputscale
        self.noise_variance = noise_variance
        self.lengthscale_bounds = lengthscale_bounds
        self.outputscale_bounds = outputscale_bounds
        self.noise_bounds = noise_bounds
        self.warm_start = warm_start

    def fit(
        self,
        X: Any,
        y: Any,
        noise: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        **others: Any,
    ) -> Self:
        """Train the hyperparameters.

        Parameters
        ----------
        X : array-like
            The training inputs, (n, d); sparse ones are made dense.
        y : array-like
            The training targets, (n,), or (n, t) of several outputs.
        noise : array-like, optional
            Known variances of the noise, (n,) or as many as targets, in the square of y's units. By default one
            variance is learned.
        checkpoint : path, optional
            A folder for the state of training. The same fit goes on from what it finds there, to the same parameters as
            if it had never been interrupted; a checkpoint of another fit is refused. It needs a `random_state`.
        **others
            None is taken. `sample_weight` is refused with a word on `noise`.

        Returns
        -------
        GPRegressor
            The fitted estimator itself.

        Raises
        ------
        SettingError
            If a setting is out of range or unknown.
        ValueError
            If X or y has the wrong shape, missing or infinite values, or a target that does not vary.
        """
        refuse_others(others)
        check_kernel_setting(self.kernel)
        check_outputs_setting(self.outputs)
        if checkpoint is not None and self.random_state is None:
            raise SettingError(
                "A checkpoint needs an integer as the 'random_state' of GPRegressor, because only a run with the same "
                "random numbers can go on from it. Got None instead."
            )
        working_dtype(self.dtype), working_device(self.device)
        several = several_targets(y)
        if several is None:
            X, y = self._checked_data(X, y)
        else:
            X, y = self._checked_inputs(X, reset=True), several[0]
            check_consistent_length(X, y)
            check_targets(y, several[1], self.outputs)
        self.seed_ = seed_from(self.random_state)
        earlier = self if self.warm_start and hasattr(self, "_preprocessing") else None
        for made in [self, *getattr(self, "estimators_", [])]:  # of an earlier fit: its memory is free for this one
            made._release()
        if several is not None and self.outputs == INDEPENDENT:
            self.estimators_ = fit_each(self, X, y, noise, checkpoint)
            return self._set_each()
        if hasattr(self, "estimators_"):
            del self.estimators_
        return self._fit_one(X, y, noise, checkpoint, earlier)

    def _fit_one(
        self,
        X: Array,
        y: Array,
        noise: Any,
        checkpoint: str | os.PathLike[str] | None,
        earlier: GPRegressor | None = None,
        like: Preprocessing | None = None,
    ) -> Self:
        """Train on checked data. y (n,); (n, t) of outputs that share the model. earlier: a fit to go on from; like:
        what was learnt from the same inputs with another target."""
        dtype, device = working_dtype(self.dtype), working_device(self.device)
        names, shared = self._column_names(), y.ndim == 2
        if shared and noise is not None:
            raise SettingError(
                "Known noise belongs to outputs that have a model each: with outputs='shared' one noise is learned for "
                "all. Leave 'noise' out, or take outputs='independent'."
            )
        variances = None if noise is None else check_noise(noise, len(y))
        kernel, beginning = kernel_and_beginning(self, X.shape[1], variances is not None, earlier)
        self.__dict__.pop("table_encoder_", None)  # of an earlier fit
        # A kernel object may number the columns, by active_dims or ard_num_dims: it sees them all.
        preprocessing = learn_preprocessing(X, y, names, bool(self.standardize), isinstance(kernel, str), like)
        beginning = beginning.for_columns(preprocessing.columns)
        scaling = preprocessing.scaling
        inputs = tensor_of(preprocessing.inputs(X)).to(device)
        target = tensor_of(scaling.scale_target(y)).to(device)
        target = target.T.contiguous() if shared else target
        known = None if variances is None else tensor_of(variances / scaling.y_scale**2).to(device)
        method, reason = self._method_for(inputs)
        if shared:
            check_shared_method(method)
        if method.exact:
            dtype = torch.float64
        used = self._input_names(preprocessing)
        data = Data(inputs, target, known, used)
        if isinstance(kernel, str) and kernel not in KERNELS:
            first = scaling.scale_target(y).reshape(len(y), -1)[:, 0]  # of outputs that share the kernel
            kernel = kernel_from_words(kernel, used, preprocessing.inputs(X), first, scaling.x_scale)
        try:
            model, result = self._train(data, kernel, beginning, method, dtype, checkpoint)
        except FitInterrupted as stop:  # usable as it is, and still an interruption
            self._take(stop.model, stop.result, reason, data, preprocessing, variances)
            raise
        self._take(model, result, reason, data, preprocessing, variances)
        return self

    def _take(
        self, model: Any, result: FitResult, reason: str, data: Data, preprocessing: Preprocessing,
        variances: Array | None,
    ) -> None:  # fmt: skip
        """Set everything that is learnt from a trained model. `reason` is that of the choice of the method."""
        method, scaling, n = result.method, preprocessing.scaling, data.n
        reason += result.method_reason.removeprefix("asked for")  # what training has made of it
        widened = (method.iterative or method.exact) and result.dtype == "float64"
        if widened and reference(model).dtype == torch.float32:
            # Training went over to float64; prediction begins there, with the data that were trained on.
            x, y = own_data(model)
            model.double()
            model.set_train_data(x.double(), y.double(), strict=False)
        reason += f"; {words}" if (words := method.clamped(n)) else ""
        self.dtype_ = str(reference(model).dtype).removeprefix("torch.")
        learned = float(noise_level(model.likelihood).mean()) * scaling.y_scale**2
        # A number; (t,) of several outputs.
        self.noise_variance_: Any = learned if variances is None else float(variances.mean())
        self.log_marginal_likelihood_value_ = log_likelihood_of(n, result.loss, scaling)
        self.log_marginal_likelihood_error_ = data.y.numel() * result.loss_error
        self.hyperparameters_ = hyperparameters_of(model)
        self._errors: dict[str, float] | None = None
        if method.own_likelihood or result.status is FitStatus.INTERRUPTED:
            self._errors = dict.fromkeys(self.hyperparameters_, math.nan)
        self._set_fitted(model, preprocessing, dataclasses.replace(result, method_reason=reason))
        if is_sharded(spread_operator(method)):  # all ranks are here now
            self._errors = self.hyperparameter_errors_

    @property
    def relevance_(self) -> Any:
        """What each input contributes to the predictions, as a part of the variance, by its name. Sobol's total index,
        computed when it is first asked for; about 0 where there is no effect."""
        check_is_fitted(self)
        if hasattr(self, "estimators_"):
            return [one.relevance_ for one in self.estimators_]
        if self._relevance is None:
            names = self._input_names(self._preprocessing)
            noise = float(noise_level(self.likelihood_).mean())
            found = relevances(self._posterior().mean, reference(self.model_), noise, names, self.seed_)
            self._relevance = dict.fromkeys(self._all_input_names(), 0.0) | found  # what was left out has no effect
        return self._relevance

    @enough_memory("The prediction", _FEWER)
    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = True
    ) -> Predicted:
        """The posterior mean, and how certain it is.

        Parameters
        ----------
        X : array-like
            New inputs, (m, d).
        return_std : bool
            Whether to give the standard deviation too.
        return_cov : bool
            Whether to give the covariance too. At most one of both.
        include_noise : bool
            Whether they are those of new observations (`noise_variance_` added), or of the function behind them.

        Returns
        -------
        mean : numpy.ndarray
            In original units, (m,); (m, t) of several outputs.
        std or covariance : numpy.ndarray
            On request: (m,) or (m, m); (m, t) or (m, m, t) of several outputs.
        """
        if return_std and return_cov:
            raise SettingError("Expected at most one of return_std and return_cov. Got both: call predict twice.")
        X = self._checked_inputs(X)
        if hasattr(self, "estimators_"):
            return predict_each(self.estimators_, X, return_std, return_cov, include_noise)
        return self._predict_one(X, return_std, return_cov, include_noise)

    def _predict_one(self, X: Array, return_std: bool, return_cov: bool, include_noise: bool) -> Predicted:
        """By the model that this estimator has. X: checked."""
        noise = self.noise_variance_ if include_noise else 0.0 * self.noise_variance_
        x, scaling = self._working_inputs(X), self._preprocessing.scaling
        return predicted(self._posterior(), x, scaling, noise, return_std, return_cov)

    @enough_memory("The sample", _FEWER)
    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
        include_noise: bool = True,
    ) -> Array:
        """Joint samples from the posterior.

        Parameters
        ----------
        X : array-like
            New inputs, (m, d).
        n_samples : int
            The number of samples.
        random_state : int, numpy.random.RandomState or None
            The seed. None takes one from the operating system.
        include_noise : bool
            Whether the samples are of new observations, or of the function behind them.

        Returns
        -------
        numpy.ndarray
            A sample in each column, (m, n_samples); (m, t, n_samples) of several outputs.
        """
        X = self._checked_inputs(X)
        generator = torch.Generator().manual_seed(seed_from(random_state))
        if hasattr(self, "estimators_"):
            return sample_each(self.estimators_, X, n_samples, generator, include_noise)
        return self._sample_one(X, n_samples, generator, include_noise)

    def _sample_one(self, X: Array, n_samples: int, generator: torch.Generator, include_noise: bool) -> Array:
        noise = self.noise_variance_ if include_noise else 0.0 * self.noise_variance_
        x, scaling = self._working_inputs(X), self._preprocessing.scaling
        return sampled(self._posterior(), x, scaling, noise, n_samples, generator)

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator into a folder: safetensors and JSON, no pickle.

        Parameters
        ----------
        folder : path
            Where to write.
        """
        check_is_fitted(self)
        save_model(self, folder)

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Self:
        """Read an estimator that was saved.

        Parameters
        ----------
        folder : path
            Where it was saved.
        device : str, optional
            Where to put it. By default the device that the folder names.

        Returns
        -------
        GPRegressor
            The fitted estimator.

        Examples
        --------
        >>> import tempfile, numpy as np, rtgp
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> gp = rtgp.GPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     gp.save(folder)
        ...     same = rtgp.GPRegressor.load(folder)
        >>> bool(np.allclose(same.predict(X), gp.predict(X)))
        True
        """
        regressor = cls()
        with enough_memory(f"The model in {str(folder)!r}", "Load it on a machine with more"):
            load_model(folder, regressor, device)
        return regressor

    def _train(
        self, data: Data, kernel: str | Kernel, beginning: Beginning, method: AnyMethod, dtype: torch.dtype,
        checkpoint: str | os.PathLike[str] | None,
    ) -> tuple[Model, FitResult]:  # fmt: skip
        """Train in `dtype`; training goes on in float64, from where it is, where that cannot serve."""
        no_rate = method.exact and self.method == "auto"  # L-BFGS has none
        rate = None if no_rate else self.learning_rate
        # In float64 there is no remedy, and a line search may pass through places that it does not end at.
        silent = dtype == torch.float64
        training = Training(
            self.steps, rate, self.seed_, bool(self.verbose), checkpoint, self.n_restarts, silent, beginning
        )
        return train_model(data.to(dtype), kernel, method, training)

    def _set_fitted(self, model: Model, preprocessing: Preprocessing, result: FitResult) -> None:
        model = model.to(working_device(self.device)).eval()
        self._preprocessing = preprocessing
        self.device_ = str(reference(model).device)
        self.model_, self.likelihood_, self.kernel_ = model, model.likelihood, model.covar_module
        self.fit_result_, self.history_ = result, result.history
        self.method_, self.method_reason_ = result.method, result.method_reason
        self._relevance = None
        # Where the first prediction puts the posterior: predicting sets no attribute.
        self._made: list[Posterior | MarginalPosterior] = []

    def _posterior(self) -> Posterior | MarginalPosterior:
        """Made by the first prediction; it follows its model from then on."""
        if not self._made:
            self._made.append(posterior(self.model_, self.likelihood_, **self._posterior_settings()))
        return self._made[0]

    def _release(self) -> None:
        """Free what predictions are made from; the next one makes it anew."""
        for made in getattr(self, "_made", []):
            made.release()

    def _posterior_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"seed": self.seed_, "operator": spread_operator(self.method_)}
        if self.method_.predictive_neighbours is not None:
            settings["neighbours"] = self.method_.predictive_neighbours
        return settings

    def _method_for(self, x: Tensor) -> tuple[AnyMethod, str]:
        if isinstance(self.method, str) and self.method == "auto":
            return choose_method(x.shape[0], x.shape[1], x.device)
        return resolve_method(self.method), "asked for"

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_made" in state:
            state["_made"] = []  # large, and quickly made again
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")
