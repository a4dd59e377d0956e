"""The library against golden.json: exact results in 50 digits, made without torch or rtgp."""

from __future__ import annotations

import json
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

import rtgp
from golden import make_golden
from gp_models import Model

GOLDEN: dict[str, dict[str, Any]] = json.loads(make_golden.PATH.read_text(encoding="utf-8"))
cases = pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN)


def condition(case: dict[str, Any]) -> float:
    """n outputscale / noise, what rounding is multiplied by in a solve."""
    return len(case["y"]) * case["outputscale"] / case["noise"]


def model_of(case: dict[str, Any]) -> Model:
    """Parameters as they are, unconstrained: nothing is lost on the way through a transformation."""
    free = Positive(transform=torch.exp, inv_transform=torch.log)
    x, y = (torch.tensor(case[key], dtype=torch.float64) for key in ("x", "y"))
    options = {"ard_num_dims": x.shape[1], "lengthscale_constraint": free}
    name = case["kernel"]
    nu = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}.get(name)
    base = RBFKernel(**options) if nu is None else MaternKernel(nu=nu, **options)
    likelihood = GaussianLikelihood(noise_constraint=free)
    model = Model(x, y, likelihood, kernel=ScaleKernel(base, outputscale_constraint=free)).double()
    base.lengthscale = torch.tensor(case["lengthscales"], dtype=torch.float64)
    # As tensors: GPyTorch's setters would round a Python number to float32.
    model.kernel.outputscale, likelihood.noise = (
        torch.tensor(case[key], dtype=torch.float64) for key in ("outputscale", "noise")
    )
    model.mean_module.constant.data.fill_(case["mean"])
    return model.train()


def numbers(gradient: dict[str, Any]) -> np.ndarray:
    return np.array([*gradient["lengthscales"], gradient["outputscale"], gradient["noise"], gradient["mean"]])


def natural_gradient(model: Model, case: dict[str, Any]) -> np.ndarray:
    """From logarithms to the parameters themselves."""
    n = len(case["y"])

    def of(parameter: Tensor) -> np.ndarray:
        return -n * parameter.grad.reshape(-1).numpy()

    return np.concatenate(
        [
            of(model.kernel.base_kernel.raw_lengthscale) / case["lengthscales"],
            of(model.kernel.raw_outputscale) / case["outputscale"],
            of(model.likelihood.noise_covar.raw_noise) / case["noise"],
            of(model.mean_module.constant),
        ]
    )


def evaluated(case: dict[str, Any], method: Any, **options: Any) -> tuple[float, np.ndarray, Any]:
    model = model_of(case)
    generator = torch.Generator().manual_seed(0)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator, **options)
    value = mll(model(model.train_inputs[0]), model.train_targets)
    value.backward()
    return -float(value.detach()) * len(case["y"]), natural_gradient(model, case), mll.last


# Relative to the largest number of its kind: 1e-9, and beyond a condition number of 1e6 what rounding makes of it.
def tolerance(case: dict[str, Any]) -> float:
    return max(1e-9, 1e-16 * condition(case))


@cases
def test_value_and_gradient(case: dict[str, Any]) -> None:
    value, gradient, _ = evaluated(case, "cholesky")
    assert abs(value - case["value"]) <= tolerance(case) * max(abs(case["value"]), len(case["y"]))
    wanted = numbers(case["gradient"])
    np.testing.assert_allclose(gradient, wanted, rtol=tolerance(case), atol=1e-9 * np.abs(wanted[:-2]).max())


@cases
def test_data_term_and_log_determinant_by_conjugate_gradients(case: dict[str, Any]) -> None:
    """RR-CG with a preconditioner of full rank, run to the end: P is the matrix itself, and no probe scatters."""
    n = len(case["y"])
    everything = rtgp.truncation.Tabulated([1.0] * 1000)
    method = rtgp.RRCG(everything, probes=2, preconditioner=rtgp.PivotedCholesky(n, "greedy"), tolerance=1e-12)
    value, gradient, _ = evaluated(case, method)
    # Pivots below 1e-7 of the largest entry are left out of P; what is left scatters by as much, times 1 / noise.
    slack = max(1e-7, 1e-7 * case["outputscale"] / case["noise"])
    assert abs(value - case["value"]) <= slack * max(abs(case["value"]), n)
    mean = case["gradient"]["mean"]
    assert abs(gradient[-1] - mean) <= 1e-7 * max(abs(mean), 1.0)


@cases
@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_posterior(case: dict[str, Any], method: str) -> None:
    model = model_of(case).eval()
    at = rtgp.posterior(model, model.likelihood, method=method, tolerance=1e-10)
    x = torch.tensor(case["x_new"], dtype=torch.float64)
    slack = tolerance(case) if method == "cholesky" else 1e-7
    wanted = np.array(case["posterior_mean"])
    np.testing.assert_allclose(at.mean(x).numpy(), wanted, rtol=0, atol=slack * np.abs(wanted).max())
    np.testing.assert_allclose(
        at.variance(x).numpy(), case["posterior_variance"], rtol=0, atol=slack * case["outputscale"]
    )


@cases
def test_scipy_finds_the_same(case: dict[str, Any]) -> None:
    """Two references, written apart: a slip in one would show."""
    found = make_golden.by_scipy(case)
    assert found["value"] == pytest.approx(case["value"], rel=tolerance(case))
    wanted = numbers(case["gradient"])
    np.testing.assert_allclose(
        numbers(found["gradient"]), wanted, rtol=10 * tolerance(case), atol=1e-9 * np.abs(wanted).max()
    )
    scale = case["outputscale"]
    for key in ("posterior_mean", "posterior_variance"):
        np.testing.assert_allclose(found[key], case[key], rtol=0, atol=10 * tolerance(case) * scale)


@pytest.mark.parametrize("name", [name for name in GOLDEN if "n = 12" in name])
def test_the_script_makes_the_same_numbers(name: str) -> None:
    """One case of each kernel, to the bit."""
    case = make_golden.all_inputs()[name]
    assert {**case, **make_golden.rounded(make_golden.by_mpmath(case))} == GOLDEN[name]


def test_inputs_are_those_of_the_script() -> None:
    made = make_golden.all_inputs()
    assert made.keys() == GOLDEN.keys()
    assert all(GOLDEN[name][key] == value for name, case in made.items() for key, value in case.items())


def test_the_gradient_is_the_derivative_of_the_value() -> None:
    """By differences of 50-digit values, which know nothing of the formulas for derivatives."""
    name = next(name for name in GOLDEN if "matern32, n = 12" in name)
    case, step = GOLDEN[name], mpmath.mpf("1e-12")
    with mpmath.workdps(make_golden.DIGITS):
        for key in ("outputscale", "noise", "mean", "lengthscales"):
            ends = []
            for sign in (1, -1):
                at = mpmath.mpf(case[key][0] if key == "lengthscales" else case[key]) + sign * step
                moved = {**case, key: [at] if key == "lengthscales" else at}
                ends.append(make_golden.by_mpmath(moved)["value"])
            wanted = case["gradient"][key]
            found = float((ends[0] - ends[1]) / (2 * step))
            assert found == pytest.approx(wanted[0] if key == "lengthscales" else wanted, rel=1e-12)


def test_the_script_knows_neither_torch_nor_rtgp() -> None:
    words = make_golden.PATH.with_name("make_golden.py").read_text(encoding="utf-8")
    imports = [line for line in words.splitlines() if line.startswith(("import ", "from "))]
    assert imports
    assert not any("torch" in line or "rtgp" in line for line in imports)
