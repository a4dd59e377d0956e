"""Advice says what stands out, and nothing where nothing does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rtgp._report import Predictions
from rtgp._report.advice import Facts, advice


def predictions(scale: float = 1.0, spread: float = 1.0, m: int = 4000) -> Predictions:
    """Right for scale 1; spread: of the means, in units of the noise."""
    rng = np.random.default_rng(0)
    mean = spread * rng.normal(size=m)
    return Predictions(mean + rng.normal(size=m), mean, np.full(m, scale))


GOOD = Facts(True, "converged", "", 0.0, predictions(), {"a": 0.5, "b": 0.2})


def test_nothing_stands_out() -> None:
    assert advice(GOOD) == ["Nothing stands out: the model is ready to predict."]


def test_what_stands_out() -> None:
    def said(**changed: object) -> str:
        (words,) = advice(replace(GOOD, **changed))  # type: ignore[arg-type]
        return words

    assert "has not converged (all 3 steps were used)" in said(converged=False, message="all 3 steps were used")
    assert "plain CG is biased" in said(biased="plain CG")
    assert "± 2.0" in said(likelihood_error=2.0)
    assert "hold rows out" in said(predictions=None)
    assert "hardly change the prediction: b." in said(relevance={"a": 0.5, "b": 0.001})
    assert "hardly anything" in said(predictions=predictions(spread=0.1))
    assert "too wide" in said(predictions=predictions(scale=1.5))
    assert "too narrow" in said(predictions=predictions(scale=0.7))


def test_heavy_tails_are_no_matter_of_width() -> None:
    rng = np.random.default_rng(0)
    errors = np.where(rng.uniform(size=4000) < 0.1, 8.0, 0.3) * rng.normal(size=4000)
    mean = 10.0 * rng.normal(size=4000)
    std = np.full(4000, np.quantile(np.abs(errors), 0.9) / 1.6449)
    (words,) = advice(replace(GOOD, predictions=Predictions(mean + errors, mean, std)))
    assert "A few errors are much larger" in words
