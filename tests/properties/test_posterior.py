"""Posteriors against the textbook's formulas (Rasmussen and Williams, Eq. 2.23 and 2.24), for any kernel and noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import rtgp
from gp_models import Model
from properties.kernel_cases import kernel_trees, matrix
from properties.tries import examples

# GPyTorch's cosine of a distance is no covariance in more than one dimension: it is left out.
KINDS = ("rbf", "matern12", "matern32", "matern52", "rq", "periodic", "linear", "polynomial")


@dataclass(frozen=True)
class Problem:
    model: Model
    x_new: Tensor
    mean: np.ndarray  # (m,), from the textbook
    covariance: np.ndarray  # (m, m)
    prior: float  # the largest prior variance


@st.composite
def problems(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Problem:
    d, n, m = draw(st.integers(1, 6)), draw(st.integers(1, 25)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x, y = torch.tensor(rng.normal(size=(n, d))), torch.tensor(rng.normal(size=n))
    x_new = torch.tensor(np.concatenate([rng.normal(size=(m, d)), x.numpy()[:1]]))  # a training point among them
    kernel: Kernel = draw(kernel_trees(d, KINDS))
    noise = draw(st.sampled_from([1e-3, 0.1, 1.0]))
    if draw(st.booleans()):
        variances = noise * np.exp(rng.normal(size=n))
        likelihood = FixedNoiseGaussianLikelihood(torch.tensor(variances))
    else:
        variances, likelihood = np.full(n, noise), GaussianLikelihood()
        likelihood = likelihood.double()
        likelihood.noise = torch.tensor(noise, dtype=torch.float64)
    model = Model(x, y, likelihood, kernel=kernel).double()
    model.mean_module.constant.data.fill_(draw(st.sampled_from([0.0, -1.5])))
    constant = float(model.mean_module.constant.detach())
    model = model.to(dtype).eval()
    if dtype != torch.float64:
        model.set_train_data(x.to(dtype), y.to(dtype), strict=False)
    K, cross = matrix(kernel, x.numpy(), x.numpy()), matrix(kernel, x_new.numpy(), x.numpy())
    K_hat = K + np.diag(variances)
    mean = constant + cross @ np.linalg.solve(K_hat, y.numpy() - constant)
    prior = matrix(kernel, x_new.numpy(), x_new.numpy())
    covariance = prior - cross @ np.linalg.solve(K_hat, cross.T)
    return Problem(model, x_new.to(dtype), mean, covariance, float(np.diag(prior).max()))


def close(got: Tensor, wanted: np.ndarray, scale: float, tolerance: float) -> None:
    np.testing.assert_allclose(got.double().numpy(), wanted, rtol=0, atol=tolerance * max(scale, 1.0))


@given(problem=problems(), method=st.sampled_from(["cholesky", "cg"]))
@examples(60)
def test_posterior_is_the_textbooks(problem: Problem, method: str) -> None:
    """Within 1e-9 by Cholesky; by CG within what its tolerance of 1e-9 promises (a residual, relative variances)."""
    at = rtgp.posterior(problem.model, problem.model.likelihood, method=method, tolerance=1e-9)
    tolerance = 1e-9 if method == "cholesky" else 1e-6  # residuals grow by at most |K*| |K_hat^-1|, here below 1e3
    close(at.mean(problem.x_new), problem.mean, np.abs(problem.mean).max(), tolerance)
    close(at.variance(problem.x_new), np.diag(problem.covariance), problem.prior, tolerance)
    close(at.covariance(problem.x_new), problem.covariance, problem.prior, tolerance)


@given(problem=problems(torch.float32))
@examples(20)
def test_a_model_in_float32_predicts_as_the_textbook(problem: Problem) -> None:
    """Inputs, parameters and results are rounded to float32; what lies between is not, where that would matter."""
    at = rtgp.posterior(problem.model, problem.model.likelihood)
    scale = max(problem.prior, 1.0)
    close(at.mean(problem.x_new), problem.mean, np.abs(problem.mean).max() * scale, 2e-3)
    close(at.variance(problem.x_new), np.diag(problem.covariance), scale, 2e-3)


@given(problem=problems(), method=st.sampled_from(["cholesky", "cg"]), cut=st.integers(0, 9))
@examples(25)
def test_a_batch_is_its_parts(problem: Problem, method: str, cut: int) -> None:
    """Mean and variance of a point do not depend on what else is asked; nor do they on the order."""
    at = rtgp.posterior(problem.model, problem.model.likelihood, method=method, tolerance=1e-9)
    x = problem.x_new
    cut = min(max(cut, 1), len(x) - 1)
    for function in (at.mean, at.variance):
        whole = function(x)
        parts = torch.cat([function(x[:cut]), function(x[cut:])])
        close(parts, whole.numpy(), problem.prior + float(whole.abs().max()), 1e-8)
        close(function(x.flip(0)).flip(0), whole.numpy(), problem.prior + float(whole.abs().max()), 1e-8)


@given(problem=problems(), seed=st.integers(0, 99))
@examples(20)
def test_more_data_never_make_it_less_certain(problem: Problem, seed: int) -> None:
    """The variance given some of the rows is at least that given all of them, and at most the prior's."""
    model, x = problem.model, problem.model.train_inputs[0]
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: max(1, len(x) // 2)]
    all_rows = rtgp.posterior(model, model.likelihood).variance(problem.x_new)
    noise = model.likelihood.noise.detach().expand(len(x))[some]
    fewer = Model(x[some], model.train_targets[some], FixedNoiseGaussianLikelihood(noise), kernel=model.kernel)
    found = rtgp.posterior(fewer.double().eval(), fewer.likelihood).variance(problem.x_new)
    slack = 1e-9 * max(problem.prior, 1.0)
    assert bool((all_rows <= found + slack).all())
    assert float(found.max()) <= problem.prior + slack
