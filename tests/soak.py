"""Fits of all kinds in turn, in one process, with errors among them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood

import rtgp
from gp_models import Model
from left_over import OnPurposeError
from rtgp.errors import InputError, SettingError
from rtgp.training._history import Row

METHODS = ("rr-cg", "cholesky", "cg", "rff", "svgp", "ss-rff", "poe", "sggp")
KERNELS = ("rbf", "matern32", "matern52")
ERRORS = 4  # one after so many fits


def data(n: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng([n, seed])
    x = random.standard_normal((n, 3))
    return x, np.sin(x[:, 0]) + 0.1 * random.standard_normal(n)


def fit_one(k: int, method: str, n: int) -> None:
    """Fit number k, with a prediction after every second one, and an error on purpose now and then."""
    kernel = KERNELS[k % len(KERNELS)]
    with warnings.catch_warnings():  # of so few steps and points
        warnings.simplefilter("ignore")
        if k % ERRORS == ERRORS - 1:
            fail_one(k // ERRORS, n)
        x, y = data(n)
        regressor = rtgp.GPRegressor(kernel, method, steps=3, random_state=k).fit(x, y)
        if k % 2:
            mean, deviation = regressor.predict(data(50, 1)[0], return_std=True)
            assert np.isfinite(mean).all()
            assert (deviation > 0).all()


def fail_one(k: int, n: int) -> None:
    """One of the ways in which a fit goes wrong."""
    x, y = data(n)
    if k % 5 == 0:
        x[1, 1] = np.nan
        with pytest.raises(InputError, match="NaN"):
            rtgp.GPRegressor(random_state=0).fit(x, y)
    elif k % 5 == 1:
        with pytest.raises(ValueError, match="minimum of 2"):
            rtgp.GPRegressor(random_state=0).fit(x[:1], y[:1])
    elif k % 5 == 2:
        with pytest.raises(SettingError, match="kernel"):
            rtgp.GPRegressor(kernel="cubic", random_state=0).fit(x, y)
    else:
        _interrupt_one(torch.from_numpy(x), torch.from_numpy(y), OnPurposeError if k % 5 == 3 else KeyboardInterrupt)


def _interrupt_one(x: torch.Tensor, y: torch.Tensor, error: type[BaseException]) -> None:
    def callback(row: Row, model: Any) -> bool:
        raise error

    model = Model(x, y, GaussianLikelihood()).double()
    with pytest.raises(error):
        rtgp.fit(model, model.likelihood, x, y, method="rr-cg", steps=3, callback=callback)
