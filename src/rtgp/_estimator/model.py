"""The GPyTorch model behind the estimator: constant mean, one kernel, Gaussian noise that is learned or known."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from gpytorch import kernels
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.models import ExactGP
from torch import Tensor

from rtgp._estimator.beginning import NAMES, Beginning, constraint_of, values_of
from rtgp._estimator.kernel_words import WORDS, parse
from rtgp._kernels import read_kernel
from rtgp._kernels.formulas import MATERN, RBF
from rtgp._kernels.names import name_inputs
from rtgp._objectives.outputs import SharedOutputs
from rtgp._ownership import without_cycles
from rtgp.errors import InputError, SettingError

KERNELS: dict[str, float] = {RBF.name: math.inf} | {formula.name: nu for nu, formula in MATERN.items()}  # name -> nu
# The smallest noise variance that can be learned, as a part of the target's variance: a standard deviation of 0.1%.
# Far below it even float64 is of no use; GPyTorch's own bound of 1e-4 is above what some real data sets have.
NOISE_FLOOR = 1e-6
GPYTORCH_START = math.log(2.0)  # where all of GPyTorch's parameters begin, which suits data of unit variance


class RegressionModel(ExactGP):
    """y = constant + f(x) + noise. Of several outputs y (t, n): t constants, and one kernel and noise for all."""

    def __init__(self, x: Tensor, y: Tensor, likelihood: Any, kernel: kernels.Kernel) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = ConstantMean(batch_shape=y.shape[:-1])
        self.covar_module = kernel
        without_cycles(self)

    def forward(self, x: Tensor) -> MultivariateNormal:
        mean = self.mean_module(x)
        return (SharedOutputs if mean.ndim == 2 else MultivariateNormal)(mean, self.covar_module(x))


def is_of_sklearn(kernel: Any) -> bool:
    """Whether scikit-learn made it; asked without loading its kernels, which whoever has one has loaded."""
    theirs = sys.modules.get("sklearn.gaussian_process.kernels")
    return theirs is not None and isinstance(kernel, theirs.Kernel)


def named_kernel(name: str, dimension: int) -> kernels.Kernel:
    """A scaled stationary kernel with one lengthscale for each input."""
    nu = KERNELS[name]
    base = (
        kernels.RBFKernel(ard_num_dims=dimension)
        if nu == math.inf
        else kernels.MaternKernel(nu=nu, ard_num_dims=dimension)
    )
    return kernels.ScaleKernel(base)


def make_likelihood(
    noise: Tensor | None, floor: float, bounds: Any = None
) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
    """Learned noise above `floor`, or between (low, high); or the known variances (n,)."""
    if noise is not None:
        return FixedNoiseGaussianLikelihood(noise=noise)
    between = bounds is not None and not isinstance(bounds, str)
    return GaussianLikelihood(noise_constraint=constraint_of(*bounds) if between else GreaterThan(floor))


def new_model(
    x: Tensor,
    y: Tensor,
    kernel: str | kernels.Kernel,
    noise: Tensor | None,
    lengthscale: float | None = None,
    beginning: Beginning | None = None,
    names: Sequence[str] | None = None,
) -> RegressionModel:
    """A model where training begins. A kernel by name starts in the units of the data, a kernel object where it is.

    `lengthscale` is that of a kernel by name, in standard deviations of each input. By default it is the root of their
    number, as distances between points are (Hvarfner et al. 2024). From shorter ones, points that differ in a rare
    category have no covariance, and training has no gradient that would bring it back. `beginning` is what a user has
    said of starting values and bounds, `names` are those of the inputs.
    """
    variance = float(y.double().var(correction=0))
    likelihood = make_likelihood(noise, NOISE_FLOOR * variance, None if beginning is None else beginning.noise_bounds)
    if isinstance(kernel, str):
        made = named_kernel(kernel, x.shape[1])
    else:
        made = copy.deepcopy(kernel)  # the caller's own is never trained
        _check_kernel(made, x)
    name_inputs(made, names)
    model: RegressionModel = RegressionModel(x, y, likelihood, made).to(x)
    with torch.no_grad():
        model.mean_module.constant.copy_(y.mean(-1))
        if isinstance(kernel, str):
            spread = x.double().std(0, correction=0)
            begin = math.sqrt(x.shape[1]) if lengthscale is None else lengthscale
            made.base_kernel.lengthscale = begin * torch.where(spread > 0, spread, 1.0)
            made.outputscale = GPYTORCH_START * variance
        if noise is None:
            start = GPYTORCH_START * variance
            likelihood.noise = start if beginning is None else beginning.noise_inside(start)
    if beginning is not None:
        beginning.apply(made, isinstance(kernel, str), likelihood, noise is None)
        beginning.take_up(model)
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
    """A name, a text that can be read, or a kernel object."""
    if isinstance(kernel, kernels.Kernel) or is_of_sklearn(kernel):
        return
    if isinstance(kernel, str) and (kernel in WORDS or not kernel.isidentifier()):
        parse(kernel)
        return
    names = ", ".join(map(repr, WORDS))
    raise SettingError(
        f"The 'kernel' parameter of GPRegressor must be one of {names}, words such as 'rbf + periodic(day)', a "
        "GPyTorch kernel such as gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()), or one of scikit-learn's. "
        f"Got {kernel!r:.100} instead."
    )


def kernel_and_beginning(
    regressor: Any, columns: int, known_noise: bool, earlier: Any
) -> tuple[str | kernels.Kernel, Beginning]:
    """The kernel of a GPRegressor's fit, and where its hyperparameters begin. `earlier` is a fit to go on from, or
    None.
    """
    beginning = Beginning(**{name: getattr(regressor, name) for name in NAMES})
    beginning.check(regressor.kernel, columns)
    kernel = regressor.kernel
    given = (beginning.lengthscale, beginning.outputscale, beginning.lengthscale_bounds, beginning.outputscale_bounds)
    if isinstance(kernel, str) and kernel not in KERNELS and any(one is not None for one in given):
        raise SettingError(
            "The parameters 'lengthscale', 'outputscale' and their bounds belong to one kernel by name, such as "
            f"kernel='rbf'. Got {kernel!r:.80}: leave them out, or give a GPyTorch kernel with its values and bounds."
        )
    if is_of_sklearn(kernel):
        from rtgp._estimator.sklearn_kernels import translated

        kernel, beginning = translated(kernel, columns, beginning)
    beginning.check_noise(known_noise)
    return kernel, replace(beginning, earlier={} if earlier is None else values_of(earlier.model_))
