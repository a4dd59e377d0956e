"""What a GPRegressor says of its likelihood."""

from __future__ import annotations

import math
from typing import Any, Self

from sklearn.utils.validation import check_is_fitted

from rtgp._estimator.likelihood import log_likelihood_of, refined_loss
from rtgp._estimator.outputs import SeveralOutputs
from rtgp._estimator.standard_errors import standard_errors
from rtgp._estimator.theta import check_has_theta, log_likelihood_at, theta_of
from rtgp._methods import spread_operator
from rtgp._objectives.reading import own_data
from rtgp.errors import SettingError


class WithLikelihood(SeveralOutputs):
    """The log marginal likelihood of a GPRegressor's model: at its hyperparameters, their errors, and elsewhere."""

    model_: Any
    method_: Any
    seed_: int
    log_marginal_likelihood_value_: float
    log_marginal_likelihood_error_: float
    _errors: dict[str, float] | None

    @property
    def hyperparameter_errors_(self) -> Any:
        """Standard errors by name. They are computed on the first use, which costs about two steps of training."""
        check_is_fitted(self)
        if self.n_outputs_ > 1 and hasattr(self, "estimators_"):
            return [one.hyperparameter_errors_ for one in self.estimators_]
        if self._errors is None:
            method = self.method_
            self._errors = standard_errors(self.model_, method.exact, self.seed_, spread_operator(method))
        return self._errors

    def refine_log_marginal_likelihood(self, error: float) -> Self:
        """Estimate `log_marginal_likelihood_value_` again, to a given standard error.

        More estimates are made, or a Cholesky factorisation where that is the cheaper. Training is left as it is.

        Parameters
        ----------
        error : float
            The largest standard error, in the units of the value.

        Returns
        -------
        GPRegressor
            The estimator itself, with the refined value and its error.
        """
        check_is_fitted(self)
        if isinstance(error, bool) or not isinstance(error, (int, float)) or not error > 0.0:
            raise SettingError(f"The 'error' to reach must be a positive number. Got {error!r} instead.")
        if hasattr(self, "estimators_"):
            for one in self.estimators_:  # each to its part of the error, which add up as squares
                one.refine_log_marginal_likelihood(error / math.sqrt(self.n_outputs_))
            return self._set_each()
        if self.method_.own_likelihood:
            raise SettingError(
                f"{type(self.method_).__name__} has a likelihood of its own, not that of a Gaussian process on all "
                "rows. Refine that of a model trained by 'cholesky', 'rr-cg', 'cg', 'rff' or 'ss-rff'."
            )
        model: Any = self.model_
        x, y = own_data(model)
        loss, found = refined_loss(model, spread_operator(self.method_), self.seed_, error / y.numel())
        self.log_marginal_likelihood_value_ = log_likelihood_of(len(x), loss, self._preprocessing.scaling)
        self.log_marginal_likelihood_error_ = y.numel() * found
        return self

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """log p(y | X) of the training data in original units, as a function of the hyperparameters.

        By Cholesky where that is the cheaper, else an unbiased estimate whose random numbers are the same in each call.

        Parameters
        ----------
        theta : array of shape (p,), optional
            Natural logarithms of the hyperparameters in `theta_names_`, in working units. All others, such as the mean,
            stay what they are. None: the trained ones, whose value is `log_marginal_likelihood_value_`.
        eval_gradient : bool
            Whether the gradient in theta is wanted too.

        Returns
        -------
        float, or (float, array of shape (p,))

        Examples
        --------
        >>> import numpy as np, rtgp
        >>> X = np.linspace(0, 1, 30)[:, None]
        >>> gp = rtgp.GPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(50 * X[:, 0]))
        >>> gp.theta_names_
        ('noise', 'outputscale', 'lengthscale[0]')
        >>> gp.log_marginal_likelihood(gp.theta_ + 0.5) < gp.log_marginal_likelihood()
        True
        """
        check_is_fitted(self)
        if hasattr(self, "estimators_") and (theta is not None or eval_gradient):
            raise SettingError(
                "Each output has a theta of its own: ask gp.estimators_[k].log_marginal_likelihood(theta), or fit with "
                "outputs='shared'."
            )
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_value_
        check_has_theta(self.model_, self.method_)
        at, scaling = self.theta_ if theta is None else theta, self._preprocessing.scaling
        value, slopes = log_likelihood_at(self.model_, at, scaling, self.method_, self.seed_, eval_gradient)
        return (value, slopes) if eval_gradient else value

    @property
    def theta_(self) -> Any:
        """Logarithms of the trained hyperparameters in `theta_names_`; of several models a list, with those of each."""
        check_is_fitted(self)
        each = hasattr(self, "estimators_")
        return [one.theta_ for one in self.estimators_] if each else theta_of(self.model_)[1]

    @property
    def theta_names_(self) -> Any:
        """The names of the hyperparameters in theta, which are those that are trained and positive."""
        check_is_fitted(self)
        each = hasattr(self, "estimators_")
        return [one.theta_names_ for one in self.estimators_] if each else theta_of(self.model_)[0]
