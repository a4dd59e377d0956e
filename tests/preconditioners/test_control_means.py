"""The mean of every control variate is exactly zero, for every hyperparameter, however old its preconditioner is.

The n probes sqrt(n) e_i have the covariance of the real ones exactly: their average is the expectation itself.
"""

from __future__ import annotations

from functools import partial

import gpytorch
import pytest
import torch
from torch import Tensor

from rtgp._kernels import read_kernel
from rtgp._objectives import Batch
from rtgp._preconditioners.build import build
from rtgp._preconditioners.neighbour_control import NeighbourControl
from rtgp._preconditioners.nystroem_control import NystroemControl
from rtgp._preconditioners.shape import Shape
from rtgp._solvers import NoiseUnits
from rtgp.operators import make_from_form

N, D = 30, 3
KERNELS = {
    "rbf": gpytorch.kernels.RBFKernel,
    "matern12": partial(gpytorch.kernels.MaternKernel, nu=0.5),
    "matern32": partial(gpytorch.kernels.MaternKernel, nu=1.5),
}
SHAPES = {
    "rank 8": (Shape(8), NystroemControl),
    "1 neighbour": (Shape(0, 1), NeighbourControl),
    "5 neighbours": (Shape(0, 5), NeighbourControl),
    "all neighbours": (Shape(0, N - 1), NeighbourControl),
    "rank 8 and 5 neighbours": (Shape(8, 5), NystroemControl),
    "rank 3 and all neighbours": (Shape(3, N - 1), NystroemControl),
}


def make_batch(kind: str, per_point: bool, shift: float = 0.0) -> tuple[Batch, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, D, generator=generator, dtype=torch.float64)
    x[-1] = x[0]
    y = torch.randn(N, generator=generator, dtype=torch.float64)
    kernel = gpytorch.kernels.ScaleKernel(KERNELS[kind](ard_num_dims=D)).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.5, 0.8, 1.2]]) * (1.0 + shift)
    kernel.outputscale = 1.5 - shift
    noise = torch.tensor(0.1 + shift, dtype=torch.float64)
    if per_point:
        noise = noise * (0.5 + torch.rand(N, generator=generator, dtype=torch.float64))
    noise.requires_grad_()
    return Batch(read_kernel(kernel, x), noise, y), [*kernel.parameters(), noise]


def flat(value: Tensor, parameters: list[Tensor]) -> Tensor:
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    pairs = zip(parameters, found, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("per_point", [False, True], ids=["one noise", "noise of each point"])
@pytest.mark.parametrize("shift", [0.0, 0.3], ids=["fresh", "stale"])
@pytest.mark.parametrize("kind", KERNELS)
def test_it_is_zero(shape: str, per_point: bool, shift: float, kind: str) -> None:
    wanted, control_kind = SHAPES[shape]
    earlier, _ = make_batch(kind, per_point, shift)
    then = NoiseUnits(make_from_form(earlier.form, "dense"), earlier.noise)
    made = build(wanted, then, torch.Generator().manual_seed(1))
    control = made.control(torch.float64)
    assert isinstance(control, control_kind)

    batch, parameters = make_batch(kind, per_point)
    system = NoiseUnits(make_from_form(batch.form, "dense"), batch.noise)
    duals = made.preconditioner.whiten_transpose(N**0.5 * torch.eye(N, dtype=torch.float64))
    squares = (duals * system.matmul(duals)).sum(0)  # u^T A u
    weights = torch.full((N,), 1.0 / N, dtype=torch.float64)
    one = torch.zeros(N, dtype=torch.float64)
    one[3] = 1.0

    def gradients(weights: Tensor) -> tuple[Tensor, Tensor]:
        parts = control.losses(system, duals, squares, weights, batch.form, batch.noise)
        assert parts.shape == (2,)
        return flat(parts[0], parameters), flat(parts[1], parameters)

    of_one = gradients(one)
    for mean, single in zip(gradients(weights), of_one, strict=True):
        # That of a single probe is not zero, unless there is nothing to be taken: the test has power.
        assert float(mean.abs().max()) < 1e-10 * max(1.0, float(single.abs().max()))
    assert float(torch.cat(of_one).abs().max()) > 1e-3


@pytest.mark.parametrize("per_point", [False, True], ids=["one noise", "noise of each point"])
def test_the_mean_follows_the_noise_too(per_point: bool) -> None:
    """What is kept of one evaluation serves no other: the same kernel in another noise has other means."""
    batch, _ = make_batch("matern32", per_point)
    system = NoiseUnits(make_from_form(batch.form, "dense"), batch.noise)
    control = build(Shape(0, 4), system, torch.Generator().manual_seed(1)).control(torch.float64)
    ones = torch.ones(1, dtype=torch.float64)
    first = control.centre(ones, ones, batch.form, batch.noise)
    other = control.centre(ones, ones, batch.form, 3.0 * batch.noise)
    fresh = type(control)(control._preconditioner).centre(ones, ones, batch.form, 3.0 * batch.noise)
    torch.testing.assert_close(other, fresh, rtol=0, atol=0)
    assert not torch.equal(first, other)
