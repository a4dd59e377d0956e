"""What a diagnosis says of Fourier features: the effective dimension, and the words."""

from __future__ import annotations

import gpytorch
import pytest
import torch

import reference
import rtgp
from gp_models import airports
from models import Regression
from rtgp._objectives.fourier_limit import FourierLimit
from rtgp.diagnostics._fourier import effective_dimension, fourier_limit
from rtgp.diagnostics._subject import Subject, SubjectSystem


def subject(lengthscale: float, noise: float, n: int = 300) -> Subject:
    x, y = airports(n)
    return Subject(Regression(x, y).set(lengthscale, 1.0, noise), x, y, "")


@pytest.mark.parametrize("lengthscale, noise", [(1.0, 0.1), (0.2, 0.01), (0.05, 1e-3)])
def test_effective_dimension(lengthscale, noise):
    """Four vectors of random signs see it to a few percent: sd below sqrt(2 d_eff / 4)."""
    of = subject(lengthscale, noise)
    dense = of.model.covar_module(of.X).to_dense().detach().numpy()
    wanted = reference.effective_dimension(dense, noise)
    found = effective_dimension(SubjectSystem(of).system, seed=0)
    assert abs(found - wanted) < 4.0 * (wanted / 2.0) ** 0.5


def test_words_say_when_features_will_do_and_what_else_to_use():
    few, many = (fourier_limit(one, SubjectSystem(one), 0) for one in (subject(3.0, 0.3), subject(0.1, 1e-3)))
    assert not few.large
    assert few.words().endswith("RFF and SS-RFF will do here")
    assert many.large
    assert "RFF overfits and SS-RFF is very noisy" in many.words()
    assert "Use method='rr-cg' or 'cholesky'" in many.words()


def test_figures():
    limit = FourierLimit(2000, 700.0, 1000)
    assert limit.log_det_bias == pytest.approx(490.0)
    assert limit.features_for_a_nat == pytest.approx(490_000.0)
    assert "490 nats (0.2 per point)" in limit.words()
    assert "490,000 features" in limit.words()


def test_a_kernel_without_a_spectral_density():
    of = subject(1.0, 0.1, 60)
    of.model.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.PeriodicKernel()).double()
    assert fourier_limit(of, SubjectSystem(of), 0) is None


def test_a_diagnosis_tells():
    x, y = airports(120, dtype=torch.float64)
    model = Regression(x, y).set(0.1, 1.0, 0.01)
    found = rtgp.diagnose(model, method=rtgp.CG(20), draws=2)
    assert found.fourier.n == 120
    assert "Fourier features" in str(found)
    assert "effective dimension d_eff about" in str(found)
