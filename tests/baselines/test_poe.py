"""The product of experts: its formula from GPyTorch's predictions, its limits, and what it cannot do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

import rtgp
from gp_models import airports
from posterior.cases import gpytorch_prediction
from rtgp._baselines import ExpertsModel
from rtgp._baselines.poe.batch import ExpertBatch
from rtgp._baselines.poe.model import disjoint_subsets
from rtgp._baselines.poe.training import ExpertsTraining, median_hyperparameters, train_experts
from rtgp._estimator.model import RegressionModel, make_likelihood
from rtgp.errors import UnsupportedModelError

SIZE = 30


def experts(count: int, known: bool = False) -> ExpertsModel:
    x, y = airports(count * SIZE)
    made = []
    for k in range(count):
        rows = slice(k * SIZE, (k + 1) * SIZE)
        noise = torch.linspace(0.1, 0.3, SIZE, dtype=torch.float64) if known else None
        model = RegressionModel(x[rows], y[rows], make_likelihood(noise, 1e-6), ScaleKernel(RBFKernel(ard_num_dims=2)))
        model = model.double()
        model.covar_module.base_kernel.lengthscale = torch.tensor([[0.3 + 0.2 * k, 0.8]])
        if not known:
            model.likelihood.noise = 0.1 * (k + 1)
        made.append(model)
    return ExpertsModel(made)


def test_the_product_is_that_of_the_equations() -> None:
    model = experts(3)
    new, _ = airports(150)
    means, precisions = [], []
    for expert in model:
        mean, covariance = gpytorch_prediction(expert, new[90:])
        means.append(mean.numpy())
        precisions.append(1.0 / covariance.diagonal().numpy())
    variance = 1.0 / np.mean(precisions, axis=0)
    mean = variance * np.mean([p * m for p, m in zip(precisions, means, strict=True)], axis=0)
    at = rtgp.posterior(model, model.likelihood)
    np.testing.assert_allclose(at.mean(new[90:]), mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(at.variance(new[90:]), variance, rtol=1e-6)
    noise = 1.0 / np.mean([1 / 0.1, 1 / 0.2, 1 / 0.3])
    np.testing.assert_allclose(at.variance(new[90:], include_noise=True), variance + noise, rtol=1e-6)


def test_one_expert_is_the_exact_gp_and_equal_experts_change_nothing() -> None:
    one = experts(1)
    twice = ExpertsModel([one.experts[0], one.experts[0]])
    new, _ = airports(60)
    exact = rtgp.posterior(one.experts[0], one.experts[0].likelihood)
    for model in (one, twice):
        at = rtgp.posterior(model, model.likelihood)
        torch.testing.assert_close(at.mean(new), exact.mean(new))
        torch.testing.assert_close(at.variance(new), exact.variance(new))


def test_far_from_the_data_it_is_the_prior() -> None:
    model = experts(3)
    at = rtgp.posterior(model, model.likelihood)
    far = torch.full((1, 2), 50.0, dtype=torch.float64)
    torch.testing.assert_close(at.variance(far), model.experts[0].covar_module.outputscale.detach().reshape(1))


def test_there_is_no_joint_covariance() -> None:
    model = experts(2)
    at = rtgp.posterior(model, model.likelihood)
    for call in (lambda: at.covariance(torch.zeros(2, 2)), lambda: at.sample(torch.zeros(2, 2), 1)):
        with pytest.raises(UnsupportedModelError, match="no joint covariance and no joint samples"):
            call()


# Training.


def test_subsets_are_disjoint_and_the_last_is_filled_up_from_the_first() -> None:
    subsets = disjoint_subsets(23, 5, seed=0)
    assert subsets.shape == (5, 5)
    flat = subsets.reshape(-1).tolist()
    assert sorted(flat[:23]) == list(range(23))
    assert flat[23:] == flat[:2]
    assert disjoint_subsets(20, 5, seed=0).shape == (4, 5)


@pytest.mark.parametrize("known", [False, True])
def test_losses_and_gradients_are_those_of_each_expert_alone(known: bool) -> None:
    model = experts(3, known)
    group = ExpertBatch(model.experts)
    losses, squares, failed = group.evaluate().T
    assert not failed.any()
    torch.testing.assert_close(group.losses()[:, 0], losses, rtol=0, atol=0)
    for k, expert in enumerate(model):
        mll = rtgp.MarginalLogLikelihood(expert.likelihood, expert.train(), "cholesky")
        loss = -mll(expert(expert.train_inputs[0]), expert.train_targets)
        loss.backward()
        assert float(losses[k]) == pytest.approx(float(loss.detach()), rel=1e-10)
        for name, parameter in expert.named_parameters():
            torch.testing.assert_close(group._parameters[k][name].grad, parameter.grad, rtol=1e-7, atol=1e-10)
        leaves = [coordinate.leaf.grad for coordinate in group._coordinates[k]]
        assert float(squares[k]) == pytest.approx(sum(float(leaf.square().sum()) for leaf in leaves), rel=1e-12)


def test_experts_are_trained_as_if_alone() -> None:
    together = experts(3)
    result = train_experts(together, rtgp.POE(), 20, None, "here")
    one_at_a_time = ExpertsTraining(entries=SIZE**2)
    apart = experts(3)
    train_experts(apart, rtgp.POE(), 20, None, "here", settings=one_at_a_time)
    alone = ExpertsModel([experts(3).experts[1]])
    train_experts(alone, rtgp.POE(), 20, None, "here", settings=one_at_a_time)
    for one, two in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)
    for one, two in zip(together.experts[1].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)
    assert result.loss < float(result.history.rows[0]["loss"])
    values = median_hyperparameters(together)
    assert values["noise"] == sorted(float(e.likelihood.noise.detach()) for e in together)[1]
    assert result.history.rows[0].keys() >= values.keys()


def test_known_noise_is_kept() -> None:
    model = experts(2, known=True)
    train_experts(model, rtgp.POE(), 3, None, "here")
    assert isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
    assert "noise" not in median_hyperparameters(model)


def test_kernels_of_ones_own_need_not_know_of_batches() -> None:
    class Own(RBFKernel):
        def forward(self, x1, x2, diag=False, **params):
            assert x1.ndim == 2
            return super().forward(x1, x2, diag=diag, **params)

    x, y = airports(60)
    sums = ScaleKernel(RBFKernel(active_dims=(0,))) + MaternKernel(nu=1.5) * ScaleKernel(LinearKernel() + RBFKernel())
    for kernel in (ScaleKernel(Own()), sums):
        gp = rtgp.GPRegressor(kernel=kernel, method=rtgp.POE(expert_size=30), random_state=0, steps=5)
        assert gp.fit(x.numpy(), y.numpy()).score(x.numpy(), y.numpy()) > 0.3
