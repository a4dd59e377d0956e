"""The fused kernels against float64 references: on a card, or in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
import triton_mode
from rtgp._kernels.formulas import MATERN, RBF, RadialFormula
from rtgp.errors import InputError, SettingError
from rtgp.operators._gpu import Tuning
from rtgp.operators._gpu.points import half_bytes, padded_width, prepare
from rtgp.operators._gpu.settings import arithmetic_of, split_count

FORMULAS = [RBF, *MATERN.values()]
SMALL = Tuning(block_rows=64, block_columns=32, gradient_rows=64, gradient_columns=64)

devices = pytest.mark.parametrize("device", [triton_mode.CPU, triton_mode.GPU])
formulas = pytest.mark.parametrize("formula", FORMULAS, ids=[f.name for f in FORMULAS])


def inputs(n: int, d: int, device: str, seed: int = 0, size: float = 1.0) -> Tensor:
    """Centred float64 z with duplicates, |z_i - z_j|^2 of the order of one in any number of inputs."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64) * (size / d**0.5)
    if n > 4:
        z[-1] = z[1]
        z[3] = z[2]
    return (z - z.mean(0)).to(device)


def vectors(n: int, r: int, device: str, seed: int = 1) -> Tensor:
    return torch.randn(n, r, generator=torch.Generator().manual_seed(seed)).to(device)


def error(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm().clamp_min(1e-300))


@triton_mode.needs_triton
@devices
@formulas
@pytest.mark.parametrize("n, d, r", [(1, 1, 1), (17, 3, 11), (17, 8, 1), (130, 1, 11), (130, 26, 1), (130, 3, 70)])
def test_product(formula: RadialFormula, n: int, d: int, r: int, device: str) -> None:
    from rtgp.operators._gpu.product import product, product_reference

    z, v = inputs(n, d, device), vectors(n, r, device)
    wanted = product_reference(formula, z, z, v)
    got = product(prepare(formula.name, z, None, 4), v, tuning=SMALL)
    assert got.shape == (n, r)
    assert got.dtype == torch.float32
    assert error(got, wanted) <= 1e-5


@triton_mode.needs_triton
@devices
@formulas
@pytest.mark.parametrize("n, d, r", [(1, 1, 1), (17, 3, 11), (130, 3, 70), (130, 26, 1), (300, 5, 2)])
@pytest.mark.parametrize("splits", [0, 3])
def test_symmetric_product(formula: RadialFormula, n: int, d: int, r: int, splits: int, device: str) -> None:
    from rtgp.operators._gpu.product import product_reference
    from rtgp.operators._gpu.symmetric import symmetric_product

    z, v = inputs(n, d, device), vectors(n, r, device)
    tuning = replace(SMALL, splits=splits)
    got = symmetric_product(prepare(formula.name, z, None, 4), v, tuning)
    assert got.shape == (n, r)
    assert error(got, product_reference(formula, z, z, v)) <= 1e-5


@triton_mode.needs_triton
@devices
@formulas
@pytest.mark.parametrize("n, d, r", [(1, 1, 1), (17, 3, 11), (130, 3, 70), (129, 26, 1), (520, 5, 2)])
def test_half_product(formula: RadialFormula, n: int, d: int, r: int, device: str) -> None:
    from rtgp.operators._gpu.half import half_product, store
    from rtgp.operators._gpu.product import product_reference

    z, v = inputs(n, d, device), vectors(n, r, device)
    stored = store(prepare(formula.name, z, None, 4))
    assert stored.high.nbytes + stored.low.nbytes == half_bytes(n)
    got = half_product(stored, v)
    assert got.shape == (n, r)
    assert got.dtype == torch.float32
    assert error(got, product_reference(formula, z, z, v)) <= 1e-5


@triton_mode.needs_triton
@devices
@pytest.mark.parametrize("n, r", [(1, 1), (17, 11), (130, 70), (300, 2)])
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_stored_product(n: int, r: int, size: float, device: str) -> None:
    """Any symmetric matrix, entries up to `size`, of whatever row stride."""
    from rtgp.operators._gpu.stored import stored_product, stored_reference

    matrix = torch.zeros(n, n + 3, device=device)[:, :n]
    matrix.copy_(RBF.value(torch.cdist(inputs(n, 3, device), inputs(n, 3, device)).square()) * size)
    v = vectors(n, r, device)
    got = stored_product(matrix, v, float(matrix.diagonal().max()))
    assert got.shape == (n, r)
    assert got.dtype == torch.float32
    assert error(got, stored_reference(matrix, v)) <= 1e-5


@triton_mode.needs_triton
@devices
@pytest.mark.parametrize("m, n, r", [(5, 300, 3), (300, 5, 12), (70, 129, 1), (1, 1, 1)])
def test_rectangular_stored_product(m: int, n: int, r: int, device: str) -> None:
    """Right-hand sides whose size changes by orders of magnitude from tile to tile, and columns of zeros."""
    from rtgp.operators._gpu.stored import stored_product, stored_reference

    generator = torch.Generator().manual_seed(0)
    matrix = (torch.rand(m, n, generator=generator) - 0.5).to(device)
    v = vectors(n, r, device)
    v[: n // 2] *= 1e-6
    v[:, r // 2] *= 0.0 if r > 1 else 1e20
    got = stored_product(matrix, v, 0.5)
    assert got.shape == (m, r)
    assert error(got, stored_reference(matrix, v)) <= 1e-5


@triton_mode.needs_triton
@devices
@pytest.mark.parametrize("n", [17, 300])
def test_wide_sums(n: int, device: str) -> None:
    from rtgp.operators._gpu.product import product, product_reference

    z, v = inputs(n, 3, device), vectors(n, 2, device)
    got = product(prepare("rbf", z, None, 4), v, tuning=SMALL, wide=True)
    assert got.dtype == torch.float64
    assert error(got, product_reference(RBF, z, z, v)) <= 1e-5


@triton_mode.needs_triton
@devices
@formulas
@pytest.mark.parametrize("m, n, d", [(1, 130, 3), (130, 17, 26), (33, 64, 5)])
def test_rectangular_product(formula: RadialFormula, m: int, n: int, d: int, device: str) -> None:
    from rtgp.operators._gpu.product import product, product_reference

    a, b, v = inputs(m, d, device, seed=3), inputs(n, d, device, seed=4), vectors(n, 3, device)
    got = product(prepare(formula.name, a, b, 4), v, tuning=SMALL)
    assert error(got, product_reference(formula, a, b, v)) <= 1e-5


@triton_mode.needs_triton
@devices
@formulas
@pytest.mark.parametrize("direct", [0, 128], ids=["expanded", "direct"])
@pytest.mark.parametrize("size", [1e-3, 30.0, 3000.0])
def test_distances_do_not_cancel(formula: RadialFormula, direct: int, size: float, device: str) -> None:
    """Near pairs far from the centre, and points that are almost one: both ways to a distance keep 1e-5."""
    from rtgp.operators._gpu.product import product, product_reference

    z = inputs(66, 6, device, size=size)
    z[33:] = z[:33] + inputs(33, 6, device, seed=5, size=0.5)
    v = vectors(66, 2, device)
    got = product(prepare(formula.name, z, None, direct), v, tuning=SMALL)
    assert error(got, product_reference(formula, z, z, v)) <= 1e-5


@triton_mode.needs_triton
@devices
@pytest.mark.parametrize(
    "arithmetic, tolerance", [("float16x3", 1e-5), ("tf32x3", 1e-5), ("ieee", 1e-5), ("tf32", 3e-3)]
)
@pytest.mark.parametrize("splits", [1, 3])
def test_arithmetics_and_splits(arithmetic: str, tolerance: float, splits: int, device: str) -> None:
    from rtgp.operators._gpu.product import product, product_reference

    z, v = inputs(130, 3, device), vectors(130, 5, device)
    tuning = Tuning(block_rows=64, block_columns=16, splits=splits, arithmetic=arithmetic)
    got = product(prepare("rbf", z, None, 4), v, tuning=tuning)
    assert error(got, product_reference(RBF, z, z, v)) <= tolerance


@triton_mode.needs_triton
@devices
def test_columns_of_any_size(device: str) -> None:
    """Each column is as accurate as if it were alone, from 1e-30 to 1e30; zero columns give zero."""
    from rtgp.operators._gpu.product import product, product_reference

    z, v = inputs(40, 2, device), vectors(40, 4, device)
    v = v * torch.tensor([1e-30, 1.0, 1e30, 0.0], device=device)
    wanted = product_reference(RBF, z, z, v)
    got = product(prepare("rbf", z, None, 4), v, tuning=SMALL)
    for k in range(3):
        assert error(got[:, k], wanted[:, k]) <= 1e-5
    assert torch.equal(got[:, 3], torch.zeros(40, device=device))


@triton_mode.needs_triton
@devices
def test_small_entries_of_K_count(device: str) -> None:
    """Rows whose entries are all below float16's smallest number keep their digits."""
    from rtgp.operators._gpu.product import product, product_reference

    z = torch.zeros(34, 1, dtype=torch.float64, device=device)
    z[0] = 5.0  # exp(-12.5) = 4e-6 from all others
    v = torch.ones(34, 1, device=device)
    v[0] = 0.0
    got = product(prepare("rbf", z, None, 4), v, tuning=SMALL)
    wanted = product_reference(RBF, z, z, v)
    assert abs(float(got[0] / wanted[0]) - 1.0) <= 1e-5


@triton_mode.needs_triton
@devices
@formulas
@pytest.mark.parametrize("n, d, r", [(1, 1, 1), (17, 3, 11), (130, 1, 1), (130, 8, 11), (130, 26, 2), (40, 12, 40)])
def test_gradient(formula: RadialFormula, n: int, d: int, r: int, device: str) -> None:
    from rtgp.operators._gpu.gradient import gradient, gradient_reference

    z, u, v = inputs(n, d, device), vectors(n, r, device), vectors(n, r, device, seed=2)
    pair = prepare(formula.name, z, None, 4)
    for left, right in ((u, v), (u, u)):
        value, by_z = gradient(pair, left, right, SMALL)
        wanted, wanted_by_z = gradient_reference(formula, z, left, right)
        size = gradient_reference(formula, z, left.abs(), right.abs())[0]
        assert value.dtype == by_z.dtype == torch.float64
        assert abs(float(value - wanted)) <= 1e-6 * float(size)
        assert error(by_z, wanted_by_z) <= 1e-4
        assert by_z.shape == (n, d)


@triton_mode.needs_triton
@devices
@formulas
@pytest.mark.parametrize("n, d, r", [(1, 1, 1), (17, 3, 11), (130, 1, 1), (130, 8, 2), (130, 26, 1), (300, 17, 1)])
@pytest.mark.parametrize("splits", [0, 3])
def test_derivative(formula: RadialFormula, n: int, d: int, r: int, splits: int, device: str) -> None:
    from rtgp.operators._gpu.derivative import derivative, derivative_reference

    z, v = inputs(n, d, device), vectors(n, r, device)
    got = derivative(prepare(formula.name, z, None, 4), v, replace(SMALL, splits=splits))
    assert got.shape == (d, n, r)
    assert got.dtype == torch.float64
    wanted, size = derivative_reference(formula, z, v), derivative_reference(formula, z, v.abs())
    assert float((got - wanted).norm()) <= 1e-5 * float(size.norm())


@triton_mode.needs_triton
@formulas
def test_the_derivative_reference_is_the_derivative(formula: RadialFormula) -> None:
    """Against finite differences in the logarithm of each lengthscale: dk/dlog l_a = -2 slope (z_ia - z_ja)^2."""
    from rtgp.operators._gpu.derivative import derivative_reference

    z, v, step = inputs(9, 3, "cpu"), vectors(9, 2, "cpu").double(), 1e-6
    found = derivative_reference(formula, z, v) * -2.0
    for a in range(3):
        ends = []
        for sign in (1.0, -1.0):
            moved = z.clone()
            moved[:, a] /= np.exp(sign * step)
            K = reference.kernel_matrix(formula.name, moved.numpy(), moved.numpy(), np.ones(3))
            ends.append(K @ v.numpy())
        np.testing.assert_allclose(found[a].numpy(), (ends[0] - ends[1]) / (2.0 * step), atol=1e-7)


@triton_mode.needs_triton
@formulas
def test_the_gradient_reference_is_the_derivative(formula: RadialFormula) -> None:
    """Against NumPy, written from the kernels' equations."""
    from rtgp.operators._gpu.gradient import gradient_reference

    z, u, v = inputs(7, 3, "cpu"), vectors(7, 2, "cpu").double(), vectors(7, 2, "cpu", seed=2).double()
    weight = ((u @ v.T + v @ u.T) / 2).numpy()
    K = reference.kernel_matrix(formula.name, z.numpy(), z.numpy(), np.ones(3))
    derivative = reference.kernel_input_derivatives(formula.name, z.numpy(), z.numpy(), np.ones(3))
    value, by_z = gradient_reference(formula, z, u, v)
    np.testing.assert_allclose(float(value), (weight * K).sum(), rtol=1e-12)
    np.testing.assert_allclose(by_z.numpy(), 2.0 * np.einsum("ij,ijd->id", weight, derivative), atol=1e-12)


@triton_mode.needs_triton
@devices
@pytest.mark.parametrize("distance", [100.0, 8000.0])
def test_a_point_far_away_does_not_spoil_the_others(distance: float, device: str) -> None:
    """Entry by entry, and in the gradient: a value a hundred standard deviations out, a short lengthscale on it."""
    from rtgp.operators._gpu.gradient import gradient, gradient_reference
    from rtgp.operators._gpu.half import half_product, store
    from rtgp.operators._gpu.product import product, product_reference
    from rtgp.operators._gpu.symmetric import symmetric_product

    n, d = 140, 18
    z = inputs(n, d, device)
    z[0] *= 0.1
    z[0, 14] = distance
    pair, few = prepare("rbf", z, None, 4), torch.eye(n, device=device)[:, :30].contiguous()
    wanted = product_reference(RBF, z, z, few)
    for got in (product(pair, few, tuning=SMALL), symmetric_product(pair, few, SMALL)):
        assert float((got - wanted).abs().max()) <= 1e-5
    assert float((half_product(store(pair), few) - wanted).abs().max()) <= 5e-7
    u, v = vectors(n, 3, device), vectors(n, 3, device, seed=2)
    by_z, wanted_by_z = (found[1] for found in (gradient(pair, u, v, SMALL), gradient_reference(RBF, z, u, v)))
    assert error(by_z, wanted_by_z) <= 1e-4


def test_expanded_inputs_give_the_distances() -> None:
    """Plain torch: left . right * unit is |a - b|^2, and 0 for equal points."""
    for size in (1e-6, 1.0, 30.0):
        z = inputs(9, 5, "cpu", size=size)
        pair = prepare("matern12", z, None, 4)
        squared = (pair.rows.left.double() @ pair.columns.right.double().T * pair.unit.double())[:9, :9]
        exact = (pair.rows.z[:5, :9].double() + pair.rows.z[5:, :9].double()).T
        wanted = (exact[:, None] - exact[None]).square().sum(-1)
        torch.testing.assert_close(squared, wanted, rtol=0, atol=1e-6 * float(pair.largest))
        assert float(squared[3, 2].abs()) <= 1e-9 * float(pair.largest)


def test_widths_and_splits() -> None:
    assert [padded_width(d) for d in (1, 3, 8, 19, 20, 26, 128)] == [16, 16, 32, 64, 128, 128, 448]
    assert split_count(row_blocks=75, column_blocks=150, processors=132) == 7
    assert split_count(row_blocks=2172, column_blocks=4344, processors=132) == 1
    assert split_count(row_blocks=1, column_blocks=1, processors=132) == 1
    assert split_count(row_blocks=1, column_blocks=2, processors=132, wanted=5) == 2


def test_settings_are_checked() -> None:
    with pytest.raises(SettingError, match="'block_rows'"):
        Tuning(block_rows=100)
    with pytest.raises(SettingError, match="'arithmetic'"):
        Tuning(arithmetic="float8")
    with pytest.raises(SettingError, match="'precision' parameter must be one of"):
        arithmetic_of("double", Tuning())
    assert arithmetic_of("tf32", Tuning()) == "tf32"


@triton_mode.needs_triton
def test_right_hand_sides_must_be_float32() -> None:
    import gpytorch

    from rtgp.operators import make

    if triton_mode.CUDA:
        pytest.skip("Triton's interpreter is for machines without a card")
    operator = make(gpytorch.kernels.RBFKernel(), torch.zeros(3, 1), "triton")
    with pytest.raises(InputError, match="float32"):
        operator.matmul(torch.ones(3, 1, dtype=torch.float64))
