"""Models, and GPyTorch's exact predictions from them."""

from __future__ import annotations

import copy

import gpytorch
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from torch import Tensor

from gp_models import Model, airports, make

N, M = 120, 40


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2)]
    return torch.nn.Sequential(*layers)


CASES = {
    "rbf-ard": lambda: {"kernel": ScaleKernel(RBFKernel(ard_num_dims=2))},
    "matern12": lambda: {"kernel": ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=2))},
    "matern52-zero-mean": lambda: {"kernel": ScaleKernel(MaternKernel(nu=2.5)), "mean": ZeroMean()},
    "sum": lambda: {"kernel": ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(nu=1.5, active_dims=(1,)))},
    "product": lambda: {"kernel": ScaleKernel(RBFKernel(active_dims=(0,)) * MaternKernel(nu=1.5, active_dims=(1,)))},
    "generic": lambda: {"kernel": ScaleKernel(RQKernel()) + LinearKernel() + ScaleKernel(PeriodicKernel())},
    "deep": lambda: {"kernel": ScaleKernel(RBFKernel(ard_num_dims=2)), "features": network()},
    "linear-mean": lambda: {"kernel": ScaleKernel(RBFKernel()), "mean": LinearMean(2)},
    "fixed-noise": lambda: {
        "likelihood": FixedNoiseGaussianLikelihood(torch.linspace(0.01, 0.3, N, dtype=torch.float64)),
        "mean": ConstantMean(),
    },
}


def case(name: str, dtype: torch.dtype = torch.float64, n: int = N) -> tuple[Model, Tensor]:
    """A model of n airports, and new points (some of them training points)."""
    x, y = airports(n + M)
    model = make(x[:n], y[:n], **CASES[name]())
    return model.to(dtype), torch.cat([x[n:], x[:5]]).to(dtype)


def gpytorch_prediction(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (m,) and covariance (m, m) by GPyTorch's Cholesky, from a copy of the model in float64."""
    model = copy.deepcopy(model).double().eval()
    slow = gpytorch.settings.fast_computations(False, False, False)
    with torch.no_grad(), slow, gpytorch.settings.fast_pred_var(False), gpytorch.settings.debug(False):
        predicted = model(x.double())
        return predicted.mean, predicted.covariance_matrix


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest error, against the largest entry."""
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


def each_relative(found: Tensor, expected: Tensor) -> float:
    """The largest error of an entry against itself."""
    return float(((found.double() - expected.double()) / expected.double()).abs().max())
