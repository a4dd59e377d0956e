"""Theorem 1: truncated CG underestimates y^T K^-1 y, overestimates log|K|, and both errors decay geometrically."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rtgp._preconditioners import Identity, LowRank
from rtgp._solvers import Output, conjugate_gradients
from rtgp._solvers.lanczos import log_quadrature_series
from rtgp._traces import inverse_quadratic
from rtgp.truncation import fixed

N = 120


@pytest.fixture(scope="module", params=[0, 10], ids=["no preconditioner", "rank 10"])
def run(request):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, dtype=torch.float64, generator=generator)
    matrix = 30.0 * torch.exp(-0.5 * torch.cdist(x, x).square()) + torch.eye(N, dtype=torch.float64)
    rank = request.param
    if rank:
        values, vectors = torch.linalg.eigh(matrix - torch.eye(N, dtype=torch.float64))
        factor = vectors[:, -rank:] * values[-rank:].sqrt()
        preconditioner = LowRank(factor, torch.float64)
    else:
        preconditioner = Identity()
    # All n unit probes: their mean over probes is the expectation over z exactly.
    probes = torch.eye(N, dtype=torch.float64) * N**0.5
    y = torch.randn(N, 1, dtype=torch.float64, generator=generator)
    rhs = torch.cat([preconditioner.whiten(y), probes], dim=1)
    outputs = [Output(0, 0)]
    result = conjugate_gradients(lambda v: matrix @ v, rhs, fixed(None), outputs, preconditioner, tolerance=1e-13)
    quadratic = torch.cumsum(result.gamma[:, 0] * result.squares[:-1, 0], 0)
    series = log_quadrature_series(result.gamma[:, 1:], result.beta[:, 1:])
    logdet = (result.squares[0, 1:] * torch.cumsum(series, 0)).mean(1) + preconditioner.logdet()
    exact_quadratic = float(y[:, 0] @ torch.linalg.solve(matrix, y[:, 0]))
    assert float(inverse_quadratic(result, 0, 0)) == pytest.approx(float(quadratic[-1]), rel=1e-12)
    return quadratic.numpy(), logdet.numpy(), exact_quadratic, float(torch.logdet(matrix))


def test_signs(run):
    quadratic, logdet, exact_quadratic, exact_logdet = run
    assert (quadratic <= exact_quadratic * (1 + 1e-12)).all()  # u_J <= y^T K^-1 y, for every J
    assert (logdet >= exact_logdet - 1e-9 * abs(exact_logdet)).all()  # E[v_J] >= log|K|, for every J
    assert quadratic[-1] == pytest.approx(exact_quadratic, rel=1e-10)
    assert logdet[-1] == pytest.approx(exact_logdet, rel=1e-10)


@pytest.mark.parametrize("term", ["quadratic", "log-determinant"])
def test_geometric_decay(run, term):
    """log(bias) against J is a straight line (R^2 > .95) of negative slope, over many orders of magnitude."""
    quadratic, logdet, exact_quadratic, exact_logdet = run
    bias = exact_quadratic - quadratic if term == "quadratic" else logdet - exact_logdet
    decaying = bias[bias > 1e-8 * bias[0]]
    iterations = np.arange(len(decaying))
    assert len(decaying) >= 6
    correlation = np.corrcoef(iterations, np.log(decaying))[0, 1]
    assert correlation < -(0.95**0.5)
