"""Frequencies against the kernels they stand for: in the mean over draws, and on a grid.

Seeds are fixed. The Monte Carlo tests look at some 40 entries each, 12 times: |z| < 4.5 has a false-alarm probability
of about 0.3% over all of them for a new seed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

import reference
from rtgp._kernels import read_kernel
from rtgp._kernels.frequency_grid import grid_spectrum
from rtgp._kernels.spectral import components_of, draw_frequencies, draw_spectrum
from rtgp.errors import UnsupportedModelError

LENGTHSCALES = [0.5, 1.0, 2.0]
ALL = slice(None)


def points(n: int, d: int) -> torch.Tensor:
    return torch.rand(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def plain(kind: str, d: int, active=None):
    inputs = {"ard_num_dims": d, "active_dims": active}
    made = (RBFKernel(**inputs) if kind == "rbf" else MaternKernel(int(kind[-2]) / 2, **inputs)).double()
    made.lengthscale = torch.tensor([LENGTHSCALES[:d]], dtype=torch.float64)
    return made


def scaled(kernel, outputscale):
    made = ScaleKernel(kernel).double()
    made.outputscale = outputscale
    return made


def approximate(spectrum, count=None) -> torch.Tensor:
    count = spectrum.count if count is None else count
    phi = spectrum.features(ALL, count) * spectrum.weights(count).sqrt().repeat_interleave(2)
    return phi @ phi.T


def z_scores(kernel, x, orthogonal, draws=400, count=60) -> torch.Tensor:
    form, generator = read_kernel(kernel, x), torch.Generator().manual_seed(0)
    components = components_of(form)
    found = torch.stack([approximate(draw_spectrum(components, count, generator, orthogonal)) for _ in range(draws)])
    error = found.mean(0) - form.block(ALL, ALL)
    return error / (found.std(0) / draws**0.5 + 1e-12)


@pytest.mark.parametrize("orthogonal", [False, True], ids=["independent", "orthogonal"])
@pytest.mark.parametrize("kind", reference.KINDS)
def test_unbiased_for_the_kernel(kind, orthogonal):
    assert float(z_scores(scaled(plain(kind, 3), 1.7), points(9, 3), orthogonal).abs().max()) < 4.5


def test_the_check_has_power():
    """Normal frequencies are wrong for a Matern kernel, and the test above would say so."""
    form = read_kernel(plain("matern32", 3), points(9, 3))
    wrong = components_of(read_kernel(plain("rbf", 3), points(9, 3)))
    generator = torch.Generator().manual_seed(0)
    found = torch.stack([approximate(draw_spectrum(wrong, 60, generator)) for _ in range(400)])
    z = (found.mean(0) - form.block(ALL, ALL)) / (found.std(0) / 20.0 + 1e-12)
    assert float(z.abs().max()) > 10.0


COMPOSED = {
    "sum": lambda: scaled(plain("rbf", 2), 0.7) + scaled(plain("matern12", 2), 1.3),
    "product over different inputs": lambda: plain("rbf", 1, (0,)) * plain("matern52", 1, (1,)),
    "product over the same inputs": lambda: scaled(plain("rbf", 2) * plain("matern32", 2), 2.0),
    "scaled sum of products": lambda: scaled(plain("rbf", 2) * plain("matern32", 2) + plain("rbf", 2), 0.5),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_sums_and_products(name):
    kernel = COMPOSED[name]().double()
    # 61: the terms of a sum do not get equally many frequencies
    assert float(z_scores(kernel, points(9, 2), False, count=61).abs().max()) < 4.5


def test_matches_the_definition():
    x = points(12, 3)
    with torch.no_grad():
        (component,) = components_of(read_kernel(scaled(plain("matern52", 3), 1.7), x))
    spectrum = draw_spectrum((component,), 5, torch.Generator().manual_seed(0))
    scale, omega = float(component.scale), spectrum.frequencies[0].numpy()
    wanted = reference.fourier_kernel_matrix(x.numpy(), np.array(LENGTHSCALES), omega, scale)
    np.testing.assert_allclose(approximate(spectrum).numpy(), wanted, rtol=0, atol=1e-12)


def test_nested():
    """The first columns are those of a smaller set, for one component and for a sum."""
    for kernel in (plain("rbf", 2), COMPOSED["sum"]().double()):
        spectrum = draw_spectrum(components_of(read_kernel(kernel, points(7, 2))), 20, torch.Generator().manual_seed(0))
        torch.testing.assert_close(spectrum.features(ALL, 20)[:, :14], spectrum.features(ALL, 7), rtol=0, atol=1e-13)


def test_orthogonal_frequencies_are_at_right_angles():
    (component,) = components_of(read_kernel(plain("matern32", 3), points(5, 3)))
    omega = draw_frequencies(component, 8, torch.Generator().manual_seed(0), orthogonal=True)
    for block in (omega[:, :3], omega[:, 3:6], omega[:, 6:]):
        gram = block.T @ block
        assert float((gram - torch.diag(gram.diagonal())).abs().max()) < 1e-12 * float(gram.max())


@pytest.mark.parametrize("d, count", [(1, 40), (2, 600)])
def test_grid_is_exact_for_rbf(d, count):
    form = read_kernel(scaled(plain("rbf", d), 1.7), points(40, d))
    assert float((approximate(grid_spectrum(components_of(form), count)) - form.block(ALL, ALL)).abs().max()) < 1e-8


@pytest.mark.parametrize("kind, d, count", [("matern12", 1, 200), ("matern52", 1, 60), ("matern52", 2, 400)])
def test_grid_is_far_more_accurate_than_random(kind, d, count):
    form = read_kernel(plain(kind, d), points(40, d))
    components, exact = components_of(form), form.block(ALL, ALL)

    def error(spectrum):
        return float((approximate(spectrum) - exact).abs().max())

    drawn = [error(draw_spectrum(components, count, torch.Generator().manual_seed(s))) for s in range(5)]
    assert error(grid_spectrum(components, count)) < 0.2 * min(drawn)


@pytest.mark.parametrize("name", ["product over different inputs", "smooth sum"])
def test_grid_of_a_sum_and_of_a_product(name):
    kernel = plain("rbf", 2) + plain("matern52", 2) if name == "smooth sum" else COMPOSED[name]()
    form = read_kernel(kernel.double(), points(30, 2))
    found = approximate(grid_spectrum(components_of(form), 2000))
    assert float((found - form.block(ALL, ALL)).abs().max()) < 1e-3


def test_grid_refuses_three_inputs():
    components = components_of(read_kernel(plain("rbf", 3), points(5, 3)))
    with pytest.raises(UnsupportedModelError, match=r"one or two inputs\. Got 3"):
        grid_spectrum(components, 100)


@pytest.mark.parametrize("kernel", [PeriodicKernel(), ScaleKernel(LinearKernel()), RBFKernel() + PeriodicKernel()])
def test_other_kernels_are_refused(kernel):
    with pytest.raises(UnsupportedModelError, match=r"RBFKernel or MaternKernel.* Got (Periodic|Linear)Kernel"):
        components_of(read_kernel(kernel.double(), points(5, 2)))
