"""Leave-one-out predictions against models that really leave a row out."""

from __future__ import annotations

import copy

import gpytorch
import numpy as np
import torch

from rtgp._report.leave_one_out import leave_one_out


class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_against_leaving_rows_out() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(25, 2)), 100 + 7 * rng.normal(size=25)
    x = torch.tensor(X)
    t = torch.tensor((y - 90) / 3)
    model = Model(x, t).double()
    model.mean_module.constant.data.fill_(2.0)
    found = leave_one_out(model, y)
    assert found is not None
    assert found.kind == "leave-one-out"
    for i in range(len(y)):
        rest = [j for j in range(len(y)) if j != i]
        one = Model(x[rest], t[rest]).double()
        one.load_state_dict(copy.deepcopy(model.state_dict()))
        one.eval()
        with torch.no_grad():
            predicted = one.likelihood.eval()(one(x[i : i + 1]))
        np.testing.assert_allclose(found.mean[i], 3 * float(predicted.mean) + 90, rtol=1e-8)
        np.testing.assert_allclose(found.std[i], 3 * float(predicted.stddev), rtol=1e-8)


def test_too_many_rows_give_none() -> None:
    assert leave_one_out(None, np.zeros(10_000)) is None
