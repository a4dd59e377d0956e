"""`KrylovRun.truncation_variance`: by enumeration of the draws, for both ways to share a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rtgp._objectives.krylov_run import KrylovRun, Truncation
from rtgp._solvers import CGResult, CGStatus
from rtgp._solvers.lanczos import log_quadrature_series
from rtgp.truncation import ResidualDriven, Weighting, coupled_pair, russian_roulette
from truncation.enumeration import expectation, pair_survival, weights_along

RULE = ResidualDriven(0.4)
PROXIES = [1.0, 0.5, 0.3, 0.32, 0.1, 0.04]
SURVIVAL = np.minimum.accumulate([min(1.0, proxy / 0.4) for proxy in PROXIES])
LENGTH, PROBES = len(PROXIES), 2

generator = torch.Generator().manual_seed(0)
GAMMA, BETA = (0.3 + torch.rand(LENGTH, 1 + PROBES, dtype=torch.float64, generator=generator) for _ in range(2))
SQUARES = 2.0 * torch.rand(LENGTH + 1, 1 + PROBES, dtype=torch.float64, generator=generator)


def finished(truncation: Truncation, weights: np.ndarray) -> KrylovRun:
    """A run with these weights; its increments are made up."""
    count = int((weights != 0).any(1).sum())
    missing: Any = None
    result = CGResult(
        solutions=missing,
        status=CGStatus.TRUNCATED,
        iterations=count,
        gamma=GAMMA[:count],
        beta=BETA[:count],
        squares=SQUARES[: count + 1],
        weights=torch.from_numpy(weights[:count]),
        residual=0.1,
        frozen=0,
        truncations=(),
        basis=None,
    )
    columns = slice(1, 1 + PROBES)
    target = torch.zeros(1, 1, dtype=torch.float64)  # of one output
    return KrylovRun(missing, missing, truncation, missing, columns, target, missing, missing, result)


def pair(u: list[float]) -> Weighting:
    return coupled_pair(RULE, uniforms=u)


def three(u: list[float]) -> Weighting:
    return russian_roulette(RULE, draws=3, uniforms=u)


@pytest.mark.parametrize(
    "truncation, drawn, draws, breakpoints",
    [
        pytest.param(Truncation.coupled(RULE), pair, 2, pair_survival(SURVIVAL), id="coupled"),
        pytest.param(Truncation.independent(RULE), three, 3, SURVIVAL, id="independent"),
    ],
)
def test_mean_is_the_variance_of_both_terms(truncation, drawn, draws, breakpoints):
    quadratic = (GAMMA[:, 0] * SQUARES[:-1, 0]).numpy()
    log_det = (SQUARES[0, 1:] * log_quadrature_series(GAMMA[:, 1:], BETA[:, 1:])).mean(1).numpy()

    def moments(u):
        weights = weights_along(drawn(u), PROXIES)
        first = 0.5 * (weights[:, truncation.first] + weights[:, truncation.second]) @ quadratic
        second = weights[:, truncation.probes] @ log_det
        stated = finished(truncation, weights).truncation_variance()
        return np.array([first, first**2, second, second**2, stated])

    first, first_square, second, second_square, stated = expectation(moments, breakpoints, draws)
    assert stated == pytest.approx(first_square - first**2 + second_square - second**2, rel=1e-10)


def test_none_for_plain_cg():
    assert finished(Truncation.plain(LENGTH), np.ones((LENGTH, 1))).truncation_variance() == 0.0
