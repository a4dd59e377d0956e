"""K spread over two ranks leaves the estimates unbiased: every truncation enumerated, and by Monte Carlo."""

from __future__ import annotations

import numpy as np
import pytest

from distributed import cases
from distributed.ranks import run


@pytest.mark.parametrize(
    ("rule", "case"),
    [
        ("steps", "stale preconditioner and warm start, control variate"),
        pytest.param("exponential decay", "fresh preconditioner", marks=pytest.mark.slow),
        pytest.param("residual-driven", "stale preconditioner and warm start", marks=pytest.mark.slow),
        pytest.param("residual-driven", "no preconditioner", marks=pytest.mark.slow),
        pytest.param("tabulated", "fresh preconditioner, control variate", marks=pytest.mark.slow),
    ],
)
def test_exact_expectation(rule: str, case: str) -> None:
    run(2, cases.enumerated, rule, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rr-cg", "paper"])
def test_monte_carlo(name: str) -> None:
    """Six components in two settings: |z| < 4 has a false-alarm probability of 8e-4."""
    assert np.abs(run(2, cases.z_scores, name, 400)[0]).max() < 4.0


@pytest.mark.slow
def test_plain_cg_fails_it() -> None:
    """Power, far beyond what a false alarm of the test above would take."""
    assert np.abs(run(2, cases.z_scores, "cg 3", 100)[0]).max() > 10.0
