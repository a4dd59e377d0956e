"""Models in logarithms, and one evaluation of a method on them: what the metamorphic tests compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

import rtgp
from gp_models import Model

N = 60  # even: see the ladder of SS-RFF


def logarithm() -> Positive:
    """Parameters that are logarithms: gradients then do not depend on units."""
    return Positive(transform=torch.exp, inv_transform=torch.log)


def wide(number: float) -> Tensor:
    """GPyTorch's setters would round a Python number to float32."""
    return torch.tensor(number, dtype=torch.float64)


@dataclass(frozen=True)
class Setting:
    """Data and hyperparameters, everything in the same units."""

    x: Tensor  # (n, d)
    y: Tensor  # (n,)
    lengthscale: Tensor  # (d,)
    outputscale: float = 0.8
    noise: float | Tensor = 0.1  # a tensor (n,): known, not learned
    mean: float = 0.2
    nu: float = math.inf

    def changed(self, **changes: Any) -> Setting:
        return replace(self, **changes)

    def kernel(self) -> gpytorch.kernels.Kernel:
        options = {"ard_num_dims": self.x.shape[1], "lengthscale_constraint": logarithm()}
        base = RBFKernel(**options) if self.nu == math.inf else MaternKernel(nu=self.nu, **options)
        kernel = ScaleKernel(base, outputscale_constraint=logarithm()).double()
        base.lengthscale, kernel.outputscale = self.lengthscale, wide(self.outputscale)
        return kernel

    def likelihood(self) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
        if isinstance(self.noise, Tensor):
            return FixedNoiseGaussianLikelihood(self.noise)
        likelihood = GaussianLikelihood(noise_constraint=logarithm()).double()
        likelihood.noise = wide(self.noise)
        return likelihood

    def model(self) -> Model:
        model = Model(self.x, self.y, self.likelihood(), kernel=self.kernel()).double().train()
        model.mean_module.constant.data.fill_(self.mean)
        return model


def example(n: int = N, d: int = 3, seed: int = 0, nu: float = math.inf) -> Setting:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(5.0 * x[:, 0]) + x[:, -1] + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return Setting(x, y, torch.linspace(0.4, 0.9, d, dtype=torch.float64), nu=nu)


@dataclass(frozen=True)
class Found:
    loss: float  # negative log marginal likelihood, not divided by n
    kernel: Tensor  # gradient in the logarithms of lengthscales and outputscale
    noise: Tensor  # in the logarithm of the noise; empty where it is known
    mean: float  # in the mean itself
    quadratic: float

    @property
    def vector(self) -> Tensor:
        """Value and gradient in all that is a logarithm."""
        return torch.cat([torch.tensor([self.loss], dtype=torch.float64), self.kernel, self.noise])


def evaluate(method: Any, setting: Setting, seed: int = 0) -> Found:
    """The first call of a method, with the random numbers of a seed."""
    model = setting.model()
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(seed))
    value = -mll(model(setting.x), setting.y) * len(setting.y)
    value.backward()
    assert mll.last is not None
    raw = model.kernel.base_kernel.raw_lengthscale.grad, model.kernel.raw_outputscale.grad
    noise = [] if isinstance(setting.noise, Tensor) else [model.likelihood.noise_covar.raw_noise.grad]
    return Found(
        loss=float(value.detach()),
        kernel=torch.cat([g.reshape(-1) for g in raw]),
        noise=torch.cat([torch.empty(0, dtype=torch.float64), *(g.reshape(-1) for g in noise)]),
        mean=float(model.mean_module.constant.grad),
        quadratic=mll.last.quadratic,
    )


def assert_same(found: Found, wanted: Found, tolerance: float, loss: float = 0.0, mean: float = 1.0) -> None:
    """Found is wanted, with `loss` added to the value and the mean's gradient times `mean`."""
    difference = found.vector - wanted.vector
    difference[0] -= loss
    scale = float(wanted.vector.abs().max())
    assert float(difference.abs().max()) <= tolerance * scale, difference
    assert abs(found.mean - mean * wanted.mean) <= tolerance * mean * scale


def mean_and_error(values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of independent draws (p,): their mean and its standard error."""
    stacked = torch.stack(list(values))
    return stacked.mean(0), stacked.std(0) / math.sqrt(len(stacked))
