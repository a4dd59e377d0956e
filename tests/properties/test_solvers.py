"""Solves and likelihoods that do not depend on where they begin, and scale as they should."""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import reference
import rtgp
from gp_models import Model
from properties.kernel_cases import STATIONARY, kernel_trees, matrix
from properties.tries import examples
from rtgp.truncation import ExponentialDecay, ResidualDriven, Tabulated


def spd(n: int, seed: int, condition: float) -> Tensor:
    """A symmetric positive definite matrix of about this condition number."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    found = (q * np.geomspace(1.0, condition, n)) @ q.T
    return torch.tensor((found + found.T) / 2)


systems = st.tuples(st.integers(1, 30), st.integers(0, 99), st.sampled_from([1.0, 1e2, 1e5]))


@given(system=systems, columns=st.integers(1, 3), rank=st.sampled_from([None, 3]))
@examples(40)
def test_a_run_to_the_end_solves(system: tuple[int, int, float], columns: int, rank: int | None) -> None:
    n, seed, condition = system
    A, b = spd(n, seed, condition), torch.tensor(np.random.default_rng(seed).normal(size=(n, columns)))
    certain = Tabulated([1.0] * (1000 + 20 * n))  # no draw ever ends
    preconditioner = None if rank is None else rtgp.PivotedCholesky(min(rank, n))
    generator = torch.Generator().manual_seed(seed)
    found = rtgp.solve(A, b, certain, preconditioner, generator, tolerance=1e-13)
    wanted = np.linalg.solve(A.numpy(), b.numpy())
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


@given(system=systems, power=st.integers(-6, 6), follows=st.booleans())
@examples(30)
def test_scaling_the_matrix(system: tuple[int, int, float], power: int, follows: bool) -> None:
    """(c A)^-1 b = A^-1 b / c and log|c A| = log|A| + n log c, path by path: the draws follow ratios of residuals."""
    n, seed, condition = system
    A, b = spd(n, seed, condition), torch.tensor(np.random.default_rng(seed).normal(size=n))
    c = 4.0**power
    rule = ResidualDriven(0.3) if follows else ExponentialDecay(0.3, 2)

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    plain, scaled = (rtgp.solve(a, b, rule, generator=generator()) for a in (A, c * A))
    torch.testing.assert_close(scaled * c, plain, rtol=1e-9, atol=1e-9 * float(plain.abs().max()))
    plain, scaled = (rtgp.logdet(a, rule, generator=generator(), probes=4) for a in (A, c * A))
    # A roulette of few terms may add up large ones that cancel.
    slack = 1e-8 * (float(plain.abs()) + n * (abs(math.log(c)) + math.log(condition)) + 1.0)
    assert abs(float(scaled) - float(plain) - n * math.log(c)) <= slack


@st.composite
def models(draw: st.DrawFn) -> tuple[Kernel, Tensor, Tensor, float]:
    d, n = draw(st.integers(1, 5)), draw(st.integers(2, 25))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    noise = draw(st.sampled_from([1e-2, 0.1, 1.0]))
    return (
        draw(kernel_trees(d, STATIONARY)),
        torch.tensor(rng.normal(size=(n, d))),
        torch.tensor(rng.normal(size=n)),
        noise,
    )


def made(kernel: Kernel, x: Tensor, y: Tensor, noise: float) -> Model:
    model = Model(x, y, GaussianLikelihood(), kernel=kernel).double().train()
    model.likelihood.noise = torch.tensor(noise, dtype=torch.float64)
    return model


@given(drawn=models())
@examples(40)
def test_cholesky_is_the_formula(drawn: tuple[Kernel, Tensor, Tensor, float]) -> None:
    """Eq. 1 for any tree of kernels."""
    kernel, x, y, noise = drawn
    model = made(*drawn)
    value = -float(rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")(model(x), y).detach()) * len(y)
    K_hat = matrix(kernel, x.numpy(), x.numpy()) + noise * np.eye(len(y))
    wanted = reference.negative_log_likelihood(K_hat, y.numpy())
    assert abs(value - wanted) <= 1e-9 * max(abs(wanted), len(y))


@given(drawn=models(), preconditioned=st.booleans())
@examples(25)
def test_where_a_solve_begins_does_not_matter_once_it_has_converged(
    drawn: tuple[Kernel, Tensor, Tensor, float], preconditioned: bool
) -> None:
    """Value and gradient after an earlier call, warm-started from its solution, and without: the same to 1e-7."""
    _, x, y, noise = drawn
    rank = rtgp.PivotedCholesky(3, "greedy") if preconditioned else None
    found = []
    for warm in (False, True):
        method = rtgp.CG(20 * len(y) + 1000, 4, rank, warm_start=warm, tolerance=1e-12)
        model = made(*drawn)
        generator = torch.Generator()
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator)
        with torch.no_grad():
            generator.manual_seed(0)
            model.likelihood.noise = 2.0 * noise  # the step before
            mll(model(x), y)
            model.likelihood.noise = torch.tensor(noise, dtype=torch.float64)
        generator.manual_seed(1)
        value = mll(model(x), y)
        value.backward()
        found.append(torch.cat([value.detach()[None], *(p.grad.reshape(-1) for p in model.parameters())]))
        model.zero_grad()
    scale = float(found[0].abs().max()) + 1.0
    assert float((found[1] - found[0]).abs().max()) <= 1e-7 * scale
