"""What `rtgp.posterior` and `rtgp.diagnose` do not take, in one sentence; what they do, by torch alone."""

from __future__ import annotations

import pytest
import torch

import rtgp
import zoo_second
from rtgp.errors import UnsupportedModelError

REFUSED = {
    "batch of models": "a batch of models",
    "batch, shared points": "a batch of models",
    "BoTorch, two outputs": "a batch of models",
    "multitask": r"several tasks \(MultitaskGaussianLikelihood\)",
    "Hadamard multitask": "a model of 2 inputs",
    "BoTorch, tasks": "a noise for each task",
}
TAKEN = ("product of kernel calls", "evaluated covariance", "KISS-GP", "KISS-GP, two inputs", "Newton-Girard")


@pytest.mark.parametrize("name", [*REFUSED, "SGPR"])
def test_one_sentence_says_what_to_do(name: str) -> None:
    words = REFUSED.get(name, "an InducingPointKernel, whose predictions are an approximation")
    animal = zoo_second.build(name)
    with pytest.raises(UnsupportedModelError, match=rf"{words}.*model\(x\) in eval mode\.$"):
        rtgp.posterior(animal.model, animal.likelihood)


@pytest.mark.parametrize("name", REFUSED)
def test_so_does_the_diagnosis(name: str) -> None:
    animal = zoo_second.build(name)
    with pytest.raises(UnsupportedModelError, match=f"rtgp.diagnose. Got {REFUSED[name]}"):
        rtgp.diagnose(animal.model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["cholesky", "cg"])
@pytest.mark.parametrize("name", TAKEN)
def test_the_rest_is_the_conditional_of_the_prior(name: str, method: str) -> None:
    """By torch alone, from the model's own prior of old and new points. (GPyTorch's variances of KISS-GP are up to 2e-4
    off.)"""
    animal = zoo_second.build(name)
    x, y = animal.model.train_inputs[0], animal.y
    new = x[::3] * 0.9 + 0.05
    posterior = rtgp.posterior(animal.model, animal.likelihood, method=method, tolerance=1e-8)  # type: ignore[call-overload]
    mean, variance = posterior.mean(new), posterior.variance(new)
    animal.model.eval()
    with torch.no_grad():
        joint = animal.model.forward(torch.cat([x, new]))
        K, n = joint.covariance_matrix, len(x)
        system = K[:n, :n] + animal.likelihood.noise * torch.eye(n, dtype=K.dtype)
        wanted = joint.mean[n:] + K[n:, :n] @ torch.linalg.solve(system, y - joint.mean[:n])
        left = K[n:, n:] - K[n:, :n] @ torch.linalg.solve(system, K[:n, n:])
    torch.testing.assert_close(mean, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(variance, left.diagonal(), rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["KISS-GP", "product of kernel calls"])
def test_the_diagnosis_of_a_covariance_of_its_own(name: str) -> None:
    animal = zoo_second.build(name)
    found = rtgp.diagnose(animal.model, draws=2)
    assert found.n == len(animal.y)
