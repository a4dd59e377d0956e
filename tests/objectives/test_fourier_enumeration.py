"""SS-RFF is unbiased, exactly: for fixed frequencies every rung of the ladder is enumerated through the real code."""

from __future__ import annotations

import gpytorch
import pytest
import torch

import rtgp._objectives.single_sample as module
from rtgp._kernels import read_kernel
from rtgp._objectives import Batch, CholeskyObjective, FourierObjective, FourierSettings, SingleSampleObjective
from rtgp._objectives.fourier_ladder import Ladder
from rtgp._objectives.single_sample import SingleSampleSettings
from rtgp.truncation import single_sample

N = 60


def make_batch(name="rbf", per_point=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, dtype=torch.float64, generator=generator)
    y = torch.sin(3 * x[:, 0]) + 0.3 * torch.randn(N, dtype=torch.float64, generator=generator)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
    if name == "sum":
        kernel = kernel + gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5))
    noise = torch.full((N,), 0.1, dtype=torch.float64) * torch.linspace(0.5, 2.0, N, dtype=torch.float64)
    noise = (noise if per_point else noise[0]).clone().requires_grad_(True)
    mean = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    kernel = kernel.double()
    return Batch(read_kernel(kernel, x), noise, y - mean), [*kernel.parameters(), noise, mean]


def flat(result, parameters):
    gradient = torch.autograd.grad(result.surrogate, parameters, retain_graph=True)
    parts = torch.tensor([result.value, result.stats.log_det, result.stats.quadratic], dtype=torch.float64)
    return torch.cat([*(g.reshape(-1) for g in gradient), parts])


def enumerated(objective, batch, parameters, monkeypatch, seed=4):
    """sum_k P(k) * (estimate when term k is drawn), all with the same frequencies and the state of `objective`."""
    settings = objective.settings
    ladder = Ladder.build(N, settings.minimum, settings.step, 2 if len(parameters) > 5 else 1)
    probabilities, state = objective.probabilities(ladder), objective.state_dict()
    total, below = 0.0, 1.0
    for k, probability in enumerate(probabilities):
        uniform = below - 0.5 * probability  # term k + 1 is drawn for S_{k+2} < U <= S_{k+1}
        below -= probability
        monkeypatch.setattr(module, "single_sample", lambda law, generator, u=uniform: single_sample(law, uniforms=[u]))
        objective.load_state_dict(state)
        result = objective(batch, torch.Generator().manual_seed(seed))
        assert result.stats.truncations == ((*ladder.rungs[1:], ladder.exact_place)[k],)
        total = total + probability * flat(result, parameters)
    return total


def assert_exact(found, batch, parameters):
    wanted = flat(CholeskyObjective()(batch), parameters)
    assert float(((found - wanted) / wanted.abs().clamp_min(1.0)).abs().max()) < 1e-8


@pytest.mark.parametrize("probabilities", ["paper", "fitted"])
@pytest.mark.parametrize("minimum, step", [(4, 1), (10, 1), (4, 10), (6, "doubling"), (None, "doubling")])
def test_the_ladder_sums_to_the_exact_loss(minimum, step, probabilities, monkeypatch):
    batch, parameters = make_batch()
    objective = SingleSampleObjective(SingleSampleSettings(minimum, step, probabilities, False, "random"))
    assert_exact(enumerated(objective, batch, parameters, monkeypatch), batch, parameters)


@pytest.mark.parametrize(
    "frequencies, kernel, per_point", [("orthogonal", "rbf", False), ("random", "sum", False), ("random", "rbf", True)]
)
def test_for_other_frequencies_kernels_and_noise(frequencies, kernel, per_point, monkeypatch):
    batch, parameters = make_batch(kernel, per_point)
    objective = SingleSampleObjective(SingleSampleSettings(4, 10, "paper", False, frequencies))
    assert_exact(enumerated(objective, batch, parameters, monkeypatch), batch, parameters)


def test_with_probabilities_fitted_to_the_past(monkeypatch):
    """After some calls probabilities and scale have moved away from theory; the next draw is as unbiased."""
    batch, parameters = make_batch()
    objective = SingleSampleObjective(SingleSampleSettings(4, "doubling", "fitted", True, "random"))
    ladder = Ladder.build(N, 4, "doubling", 1)
    before, generator = objective.probabilities(ladder), torch.Generator().manual_seed(0)
    for _ in range(30):
        objective(batch, generator)
    after = objective.probabilities(ladder)
    assert 0.0 < objective.scale(ladder) < 0.98
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) > 0.02
    assert_exact(enumerated(objective, batch, parameters, monkeypatch), batch, parameters)


def test_plain_features_fail_the_same_check():
    batch, parameters = make_batch()
    objective = FourierObjective(FourierSettings(20, "random", True))
    found = flat(objective(batch, torch.Generator().manual_seed(4)), parameters)
    wanted = flat(CholeskyObjective()(batch), parameters)
    assert float(((found - wanted) / wanted.abs().clamp_min(1.0)).abs().max()) > 0.1


def test_frequencies_that_are_not_shared_fail_it(monkeypatch):
    """What went wrong elsewhere: other frequencies for each rung do not telescope."""
    batch, parameters = make_batch()
    objective = SingleSampleObjective(SingleSampleSettings(4, "doubling", "paper", False, "random"))
    seeds = iter(range(100))
    drawn = module.make_spectrum
    monkeypatch.setattr(
        module, "make_spectrum", lambda c, m, f, g: drawn(c, m, f, torch.Generator().manual_seed(next(seeds)))
    )
    found = enumerated(objective, batch, parameters, monkeypatch)
    wanted = flat(CholeskyObjective()(batch), parameters)
    assert float(((found - wanted) / wanted.abs().clamp_min(1.0)).abs().max()) > 0.1
