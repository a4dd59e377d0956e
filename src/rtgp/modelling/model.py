"""The GPyTorch model behind the estimator: constant mean, one kernel, Gaussian noise that is learned or known."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from gpytorch import kernels
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.models import ExactGP
from torch import Tensor

from rtgp.errors import InputError, SettingError
from rtgp.kernels import read_kernel
from rtgp.ownership import without_cycles

KERNELS: dict[str, float] = {"rbf": math.inf, "matern12": 0.5, "matern32": 1.5, "matern52": 2.5}  # name -> nu
# The smallest noise variance that can be learned, as a part of the target's variance: a standard deviation of 0.1%.
# Far below it even float64 is of no use; GPyTorch's own bound of 1e-4 is above what some real data sets have.
NOISE_FLOOR = 1e-6
GPYTORCH_START = math.log(2.0)  # where all of GPyTorch's parameters begin, which suits data of unit variance


class RegressionModel(ExactGP):
    """y = constant + f(x) + noise."""

    def __init__(self, x: Tensor, y: Tensor, likelihood: Any, kernel: kernels.Kernel) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = ConstantMean()
        self.covar_module = kernel
        without_cycles(self)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def named_kernel(name: str, dimension: int) -> kernels.Kernel:
    """A scaled stationary kernel with one lengthscale for each input."""
    nu = KERNELS[name]
    base = (
        kernels.RBFKernel(ard_num_dims=dimension)
        if nu == math.inf
        else kernels.MaternKernel(nu=nu, ard_num_dims=dimension)
    )
    return kernels.ScaleKernel(base)


def make_likelihood(noise: Tensor | None, floor: float) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
    """Learned noise above `floor`, or the known variances (n,)."""
    if noise is not None:
        return FixedNoiseGaussianLikelihood(noise=noise)
    return GaussianLikelihood(noise_constraint=GreaterThan(floor))


def new_model(
    x: Tensor, y: Tensor, kernel: str | kernels.Kernel, noise: Tensor | None, lengthscale: float | None = None
) -> RegressionModel:
    """A model where training begins: a kernel by name starts in the units of the data, one's own where it is.

    lengthscale: that of a kernel by name, in standard deviations of each input. By default the root of their number, as
    distances between points are (Hvarfner et al. 2024): from shorter ones, points that differ in a rare category have
    no covariance, and training has no gradient that would bring it back.
    """
    variance = float(y.double().var(correction=0))
    likelihood = make_likelihood(noise, NOISE_FLOOR * variance)
    if isinstance(kernel, str):
        made = named_kernel(kernel, x.shape[1])
    else:
        made = copy.deepcopy(kernel)  # the caller's own is never trained
        _check_kernel(made, x)
    model: RegressionModel = RegressionModel(x, y, likelihood, made).to(x)
    with torch.no_grad():
        model.mean_module.constant.fill_(float(y.mean()))
        if isinstance(kernel, str):
            spread = x.double().std(0, correction=0)
            begin = math.sqrt(x.shape[1]) if lengthscale is None else lengthscale
            made.base_kernel.lengthscale = begin * torch.where(spread > 0, spread, 1.0)
            made.outputscale = GPYTORCH_START * variance
        if noise is None:
            likelihood.noise = GPYTORCH_START * variance
    return model


def _check_kernel(kernel: kernels.Kernel, x: Tensor) -> None:
    """Say now, in words, what training would stumble over."""
    for part in kernel.modules():
        active = getattr(part, "active_dims", None)
        if isinstance(part, kernels.Kernel) and active is not None and int(active.max()) >= x.shape[1]:
            raise InputError(
                f"{type(part).__name__} has active_dims={active.tolist()}. Got {x.shape[1]} input columns, counted "
                "from 0: choose columns that are there."
            )
    read_kernel(kernel.to(x), x[:2])


def check_kernel_setting(kernel: Any) -> None:
    if isinstance(kernel, kernels.Kernel) or (isinstance(kernel, str) and kernel in KERNELS):
        return
    names = ", ".join(repr(name) for name in KERNELS)
    raise SettingError(
        f"The 'kernel' parameter of GPRegressor must be one of {names}, or a GPyTorch kernel such as "
        f"gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()). Got {kernel!r:.100} instead."
    )
