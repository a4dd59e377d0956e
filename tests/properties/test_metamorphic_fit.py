"""Metamorphic relations of a whole `GPRegressor.fit`, for each of the eight methods.

Units drop out when the data are standardised. With powers of two not a bit is left of them, so that training takes the
same path whatever the method draws.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

import rtgp
from properties.eight import METHODS, NEW, data, fitted

pytestmark = pytest.mark.filterwarnings("ignore::rtgp.errors.ApproximationWarning")  # Fourier features, few of them
methods = pytest.mark.parametrize("name", METHODS)


@cache
def original(name: str) -> rtgp.GPRegressor:
    return fitted(name, *data())


@methods
@pytest.mark.parametrize("power", [-20, 3])
def test_powers_of_two_in_x_and_y_change_no_bit(name: str, power: int) -> None:
    X, y = data()
    gp, wanted = fitted(name, X * 2.0**power, y * 2.0**-power), original(name)
    assert gp.hyperparameters_ == wanted.hyperparameters_
    mean, std = gp.predict(NEW * 2.0**power, return_std=True)
    expected = wanted.predict(NEW, return_std=True)
    np.testing.assert_array_equal(mean * 2.0**power, expected[0])
    np.testing.assert_array_equal(std * 2.0**power, expected[1])
    shift = len(y) * power * math.log(2.0)  # the density of y is per unit of y
    assert gp.log_marginal_likelihood_value_ == pytest.approx(wanted.log_marginal_likelihood_value_ + shift, rel=1e-12)


@methods
def test_shifts_and_other_factors_change_rounding_only(name: str) -> None:
    """1e-5: a few steps, through which rounding of 1e-15 has grown."""
    X, y = data()
    gp, wanted = fitted(name, 3.7 * X - 20.0, 1000.0 - 0.3 * y), original(name)
    mean, std = gp.predict(3.7 * NEW - 20.0, return_std=True)
    expected = wanted.predict(NEW, return_std=True)
    np.testing.assert_allclose((1000.0 - mean) / 0.3, expected[0], rtol=0, atol=1e-5 * np.ptp(y))
    np.testing.assert_allclose(std / 0.3, expected[1], rtol=1e-5)


@methods
def test_a_prediction_batch_is_its_parts(name: str) -> None:
    gp = original(name)
    whole = gp.predict(NEW, return_std=True)
    for cut in (1, 7, len(NEW) - 1):
        parts = [gp.predict(piece, return_std=True) for piece in (NEW[:cut], NEW[cut:])]
        for k in (0, 1):
            np.testing.assert_allclose(np.concatenate([part[k] for part in parts]), whole[k], rtol=1e-10, atol=1e-10)


ORDERLESS: dict[str, Any] = {
    "cholesky": METHODS["cholesky"],
    "rff": METHODS["rff"],
    "ss-rff": METHODS["ss-rff"],
    "sggp": rtgp.SGGP(),  # all points are centres
    "svgp": rtgp.SVGP(),  # all points inducing, all of them in every step
    "poe": rtgp.POE(),  # one expert
}


@pytest.mark.parametrize("name", ORDERLESS)
def test_permuting_rows(name: str) -> None:
    """CG and RR-CG are not here: their probes and pivots belong to rows (test_metamorphic.py permutes these too). With
    fewer points than all, SVGP, POE and sgGP draw which by their place in the data."""
    X, y = data()
    order = np.random.default_rng(3).permutation(len(y))
    gp, wanted = fitted(name, X[order], y[order], ORDERLESS[name]), fitted(name, X, y, ORDERLESS[name])
    found, expected = gp.predict(NEW, return_std=True), wanted.predict(NEW, return_std=True)
    for k in (0, 1):
        np.testing.assert_allclose(found[k], expected[k], rtol=0, atol=1e-5 * np.ptp(y))
    assert gp.log_marginal_likelihood_value_ == pytest.approx(wanted.log_marginal_likelihood_value_, rel=1e-6)
