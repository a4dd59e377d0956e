"""`rtgp.GPRegressor`: a Gaussian process as a scikit-learn estimator."""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from gpytorch.kernels import Kernel
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from rtgp.baselines import OTHER_LIKELIHOODS, Vecchia
from rtgp.datasets.dataset import Array
from rtgp.errors import ConvergenceError, NotPositiveDefiniteError, PrecisionWarning, SettingError
from rtgp.memory import enough_memory
from rtgp.methods import CG, RRCG, AnyMethod, Cholesky, resolve_method, spread_operator
from rtgp.modelling.fitting import Data, Model, Training, clamped, is_exact, reference, train_model
from rtgp.modelling.likelihood import refined_loss
from rtgp.modelling.model import check_kernel_setting
from rtgp.modelling.preprocessing import (
    Preprocessing,
    check_inputs_are_numbers,
    check_inputs_finite,
    check_noise,
    check_target_finite,
    check_target_varies,
    learn_preprocessing,
)
from rtgp.modelling.standard_errors import standard_errors
from rtgp.modelling.summary import hyperparameters_of
from rtgp.objectives.reading import noise_level, own_data
from rtgp.persistence import load_model, save_model
from rtgp.posterior import MarginalPosterior, Posterior, posterior
from rtgp.training import FitInterrupted, FitResult, FitStatus, choose_method

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_FEWER = "Predict fewer rows at a time; a covariance or joint samples need the square of their number"


class GPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process regression whose hyperparameters are those of the exact Gaussian process.

    Parameters
    ----------
    kernel : "rbf", "matern12", "matern32", "matern52" or a GPyTorch kernel
        By name: scaled, with one lengthscale for each input. A kernel object is copied, never trained in place; it
        sees all input columns, in working units (see `standardize`), and starts from its own values.
    method : "auto", "cholesky", "cg", "rr-cg", "rff", "ss-rff", "svgp", "poe", "sggp", "vecchia", or a settings object
        such as `rtgp.RRCG()`
        "auto" depends on the number of rows and columns and on the device; `method_` and `method_reason_` tell. All but
        "svgp" and "poe" train the hyperparameters of an exact Gaussian process; all but these and "vecchia", which
        takes the nearest training points only, predict from it.
    steps, learning_rate : of training; None leaves them to the method. Cholesky's L-BFGS has no learning rate.
    device : "auto" (a GPU where there is one), or a device of torch, such as "cpu".
    dtype : "float32" or "float64"
        Of training and prediction; `dtype_` tells which was used. Cholesky always works in float64; where float32
        cannot serve, a `PrecisionWarning` says so and float64 is used.
    standardize : whether inputs and target are brought to mean 0 and variance 1 first. Predictions are in original
        units either way. `kernel_`, `hyperparameters_` and `history_` are in working units: standardised ones.
    random_state : an int for the same result in every call, a numpy RandomState, or None. Unlike elsewhere in
        scikit-learn, None takes new random numbers from the operating system: the global generator is left alone.
    verbose : whether to show a progress bar.
    n_restarts : further starts, drawn at random, fitted on a subset first and the best few on all data; the best end is
        kept, and `fit_result_.ends` has the loss of each.

    Attributes
    ----------
    method_, method_reason_ : the settings used, and why.
    model_, likelihood_, kernel_ : the trained GPyTorch objects.
    fit_result_, history_ : how training went; `history_.to_frame()` is a table.
    hyperparameters_, hyperparameter_errors_ : name -> value and standard error (asymptotic, from the
        average-information matrix; NaN for SVGP, POE, sgGP and Vecchia, which do not maximise the likelihood). For
        POE the median over experts; `model_.experts` has each.
    log_marginal_likelihood_value_, log_marginal_likelihood_error_ : log p(y | X) of all rows as given, in original
        units (natural logarithm, not divided by n), and its standard error: 0 where it is exact. For SVGP a lower
        bound; for POE and sgGP the log likelihoods of subsets, as if these were independent, scaled to all rows; for
        Vecchia that of each row given its neighbours.
    noise_variance_ : of a new observation, in original units. With known noise: the mean of what was given to `fit`.
    n_features_in_, feature_names_in_, dtype_, device_, seed_.
    """

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

    def fit(self, X: Any, y: Any, noise: Any = None, *, checkpoint: str | os.PathLike[str] | None = None) -> Self:
        """Train on X (n, d) and y (n,). noise: known variances (n,), in the square of y's units, instead of one that
        is learned.

        checkpoint: a folder for the state of training. The same fit goes on from what it finds there, to the same
        parameters as if it had never been interrupted; a checkpoint of another fit is refused. Needs a `random_state`.
        """
        check_kernel_setting(self.kernel)
        if checkpoint is not None and self.random_state is None:
            raise SettingError(
                "A checkpoint needs an integer as the 'random_state' of GPRegressor, because only a run with the same "
                "random numbers can go on from it. Got None instead."
            )
        dtype, device = self._working_dtype(), self._working_device()
        if y is not None:
            check_target_finite(y)
        check_inputs_are_numbers(X)
        X, y = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2, ensure_all_finite=False
        )
        y = y.astype(np.float64)
        names = self._column_names()
        check_inputs_finite(X, names)
        check_target_varies(y)
        variances = None if noise is None else check_noise(noise, len(y))
        self.seed_ = _seed_from(self.random_state)
        # A kernel object may number the columns, by active_dims or ard_num_dims: it sees them all.
        preprocessing = learn_preprocessing(X, y, names, bool(self.standardize), isinstance(self.kernel, str))
        scaling = preprocessing.scaling
        inputs = _tensor(preprocessing.inputs(X)).to(device)
        target = _tensor(scaling.scale_target(y)).to(device)
        known = None if variances is None else _tensor(variances / scaling.y_scale**2).to(device)
        method, reason = self._method_for(inputs)
        if isinstance(method, Cholesky):
            dtype = torch.float64
        data = Data(inputs, target, known)
        for made in getattr(self, "_made", []):  # of an earlier fit: its memory is free for this one
            made.release()
        try:
            model, result = self._train(data, method, dtype, checkpoint)
        except FitInterrupted as stop:  # usable as it is, and still an interruption
            self._take(stop.model, stop.result, reason, data, preprocessing, variances)
            raise
        self._take(model, result, reason, data, preprocessing, variances)
        return self

    def _take(
        self, model: Any, result: FitResult, reason: str, data: Data, preprocessing: Preprocessing,
        variances: Array | None,
    ) -> None:  # fmt: skip
        """Set everything that is learnt from a trained model. reason: of the choice of the method."""
        method, scaling, n = result.method, preprocessing.scaling, data.n
        reason += result.method_reason.removeprefix("asked for")  # what training has made of it
        widened = isinstance(method, (CG, RRCG, Cholesky)) and result.dtype == "float64"
        if widened and reference(model).dtype == torch.float32:
            # Training went over to float64; prediction begins there, with the data that were trained on.
            x, y = own_data(model)
            model.double()
            model.set_train_data(x.double(), y.double(), strict=False)
        reason += f"; {words}" if (words := clamped(method, n)) else ""
        self.dtype_ = str(reference(model).dtype).removeprefix("torch.")
        learned = noise_level(model.likelihood).mean() * scaling.y_scale**2
        self.noise_variance_ = float(learned) if variances is None else float(variances.mean())
        # log p of y itself: the density of the standardised target, times the Jacobian of standardising.
        self.log_marginal_likelihood_value_ = -n * (result.loss + math.log(scaling.y_scale))
        self.log_marginal_likelihood_error_ = n * result.loss_error
        self.hyperparameters_ = hyperparameters_of(model)
        interrupted = result.status is FitStatus.INTERRUPTED
        if is_exact(model) and not isinstance(method, OTHER_LIKELIHOODS) and not interrupted:
            self.hyperparameter_errors_ = standard_errors(
                model, isinstance(method, Cholesky), self.seed_, spread_operator(method)
            )
        else:
            self.hyperparameter_errors_ = dict.fromkeys(self.hyperparameters_, math.nan)
        self._set_fitted(model, preprocessing, dataclasses.replace(result, method_reason=reason))

    def refine_log_marginal_likelihood(self, error: float) -> Self:
        """Estimate `log_marginal_likelihood_value_` anew so that its standard error is at most `error`, in the same
        units: by more estimates, or by Cholesky where that is the cheaper. Training is left as it is.

        >>> gp.refine_log_marginal_likelihood(error=0.5)  # doctest: +SKIP
        """
        check_is_fitted(self)
        if isinstance(error, bool) or not isinstance(error, (int, float)) or not error > 0.0:
            raise SettingError(f"The 'error' to reach must be a positive number. Got {error!r} instead.")
        if not is_exact(self.model_) or isinstance(self.method_, OTHER_LIKELIHOODS):
            raise SettingError(
                f"{type(self.method_).__name__} has a likelihood of its own, not that of a Gaussian process on all "
                "rows. Refine that of a model trained by 'cholesky', 'rr-cg', 'cg', 'rff' or 'ss-rff'."
            )
        model: Any = self.model_
        n, scaling = len(own_data(model)[1]), self._preprocessing.scaling
        loss, found = refined_loss(model, spread_operator(self.method_), self.seed_, error / n)
        self.log_marginal_likelihood_value_ = -n * (loss + math.log(scaling.y_scale))
        self.log_marginal_likelihood_error_ = n * found
        return self

    @enough_memory("The prediction", _FEWER)
    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = True
    ) -> Array | tuple[Array, Array]:
        """The mean (m,), with the standard deviation (m,) or the covariance (m, m) on request.

        include_noise: of new observations (`noise_variance_` added), or of the function behind them.
        """
        if return_std and return_cov:
            raise SettingError("Expected at most one of return_std and return_cov. Got both: call predict twice.")
        x = self._new_inputs(X)
        scaling, at = self._preprocessing.scaling, self._posterior()
        mean = scaling.unscale_target(_numpy(at.mean(x)))
        noise = self.noise_variance_ if include_noise else 0.0
        if return_std:
            return mean, np.sqrt(np.maximum(_numpy(at.variance(x)) * scaling.y_scale**2, 0.0) + noise)
        if return_cov:
            covariance = _numpy(at.covariance(x)) * scaling.y_scale**2
            covariance[np.diag_indices_from(covariance)] += noise
            return mean, covariance
        return mean

    @enough_memory("The sample", _FEWER)
    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
        include_noise: bool = True,
    ) -> Array:
        """Joint samples from the posterior at X, (m, n_samples): of new observations, or of the function."""
        x = self._new_inputs(X)
        generator = torch.Generator().manual_seed(_seed_from(random_state))
        samples = _numpy(self._posterior().sample(x, n_samples, generator=generator)).T
        samples = self._preprocessing.scaling.unscale_target(samples)
        if include_noise:
            drawn = torch.randn(samples.shape, generator=generator, dtype=torch.float64).numpy()
            samples += math.sqrt(self.noise_variance_) * drawn
        return samples

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator into a folder: safetensors and JSON, no pickle."""
        check_is_fitted(self)
        save_model(self, folder)

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Self:
        """The estimator that was saved in `folder`, on the device it names or on another."""
        regressor = cls()
        with enough_memory(f"The model in {str(folder)!r}", "Load it on a machine with more"):
            load_model(folder, regressor, device)
        return regressor

    def _train(
        self, data: Data, method: AnyMethod, dtype: torch.dtype, checkpoint: str | os.PathLike[str] | None
    ) -> tuple[Model, FitResult]:
        """Train in `dtype`; in float64 where that cannot serve. (CG and RR-CG go over to it on the way.)"""
        if isinstance(method, (CG, RRCG)) and dtype == torch.float32:
            return self._train_in(data, method, dtype, checkpoint)
        try:
            with warnings.catch_warnings():
                # In float64, a line search may pass through such a place; where it ends is looked at afterwards.
                warnings.simplefilter("ignore" if dtype == torch.float64 else "error", PrecisionWarning)
                return self._train_in(data, method, dtype, checkpoint)
        except (PrecisionWarning, NotPositiveDefiniteError, ConvergenceError) as problem:
            if dtype == torch.float64:
                raise
            reason = str(problem).split(". ")[0]
        warnings.warn(
            f"Trained in float64 instead of float32, which takes longer and twice the memory ({reason}). Pass "
            "dtype='float64' to begin with it.",
            PrecisionWarning,
            stacklevel=3,
        )
        # Another problem, so a folder of its own. A later run finds that float32 fails as before and goes on here.
        below = None if checkpoint is None else Path(checkpoint) / "float64"
        return self._train(data, method, torch.float64, below)

    def _train_in(
        self, data: Data, method: AnyMethod, dtype: torch.dtype, checkpoint: str | os.PathLike[str] | None
    ) -> tuple[Model, FitResult]:
        no_rate = isinstance(method, Cholesky) and self.method == "auto"  # L-BFGS has none
        rate = None if no_rate else self.learning_rate
        training = Training(self.steps, rate, self.seed_, bool(self.verbose), checkpoint, self.n_restarts)
        return train_model(data.to(dtype), self.kernel, method, training)

    def _set_fitted(self, model: Model, preprocessing: Preprocessing, result: FitResult) -> None:
        model = model.to(self._working_device()).eval()
        self._preprocessing = preprocessing
        self.device_ = str(reference(model).device)
        self.model_, self.likelihood_, self.kernel_ = model, model.likelihood, model.covar_module
        self.fit_result_, self.history_ = result, result.history
        self.method_, self.method_reason_ = result.method, result.method_reason
        # Where the first prediction puts the posterior: predicting sets no attribute.
        self._made: list[Posterior | MarginalPosterior] = []

    def _posterior(self) -> Posterior | MarginalPosterior:
        """Made by the first prediction; it follows its model from then on."""
        if not self._made:
            self._made.append(posterior(self.model_, self.likelihood_, **self._posterior_settings()))
        return self._made[0]

    def _posterior_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"seed": self.seed_, "operator": spread_operator(self.method_)}
        if isinstance(self.method_, Vecchia):
            settings["neighbours"] = self.method_.predictive_neighbours
        return settings

    def _new_inputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        check_inputs_are_numbers(X)
        X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        check_inputs_finite(X, self._column_names())
        return _tensor(self._preprocessing.inputs(X)).to(reference(self.model_))

    def _column_names(self) -> tuple[str, ...]:
        given = getattr(self, "feature_names_in_", None)
        return tuple(f"x{i}" for i in range(1, self.n_features_in_ + 1)) if given is None else tuple(map(str, given))

    def _method_for(self, x: Tensor) -> tuple[AnyMethod, str]:
        if isinstance(self.method, str) and self.method == "auto":
            return choose_method(x.shape[0], x.shape[1], x.device)
        return resolve_method(self.method), "asked for"

    def _working_dtype(self) -> torch.dtype:
        name = str(self.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise SettingError(
                f"The 'dtype' parameter of GPRegressor must be 'float32' or 'float64'. Got {self.dtype!r} instead."
            )
        return _DTYPES[name]

    def _working_device(self) -> torch.device:
        if str(self.device) == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.empty(0, device=self.device).device
        except (RuntimeError, AssertionError, TypeError) as error:
            raise SettingError(
                "The 'device' parameter of GPRegressor must be 'auto' or a device of torch that is there, such as "
                f"'cpu' or 'cuda'. Got {self.device!r} instead ({str(error).splitlines()[0]})."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_made" in state:
            state["_made"] = []  # large, and quickly made again
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


def _seed_from(random_state: int | np.random.RandomState | None) -> int:
    """A seed for torch. An int is one; a RandomState is drawn from; None asks the operating system."""
    if random_state is None:
        return secrets.randbits(31)
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool) and 0 <= random_state < 2**32:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _tensor(array: Array) -> Tensor:
    # A copy: numpy's memory may be aligned otherwise than torch's, which may change the last bit of a product.
    return torch.from_numpy(array).clone()


def _numpy(tensor: Tensor) -> npt.NDArray[np.float64]:
    return tensor.detach().double().cpu().numpy()
