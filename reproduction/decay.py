"""What the theorems are about, measured: how biases and increments decay, and what a truncation law makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reproduction import series
from reproduction.statistics import slope
from rtgp._estimator.model import RegressionModel
from rtgp._kernels import read_kernel
from rtgp._kernels.spectral import components_of, draw_spectrum
from rtgp._objectives import Batch
from rtgp._objectives.fourier_algebra import FourierSystem
from rtgp._objectives.fourier_ladder import Ladder
from rtgp._preconditioners import Identity
from rtgp._solvers import Output, conjugate_gradients
from rtgp.truncation import TruncationDistribution, russian_roulette


def mean_increments(matrix: Tensor, y: Tensor) -> series.Increments:
    """The series of log|A| averaged over all n unit probes, which is the expectation over probes exactly; (H, 1)."""
    units = torch.eye(len(y), dtype=matrix.dtype, device=matrix.device) * math.sqrt(len(y))
    found = series.increments(matrix, y, units)
    return series.Increments(found.log_det.mean(1, keepdim=True), found.quadratic)


def decay_rate(terms: Sequence[float], floor: float = 1e-4) -> float:
    """r of |Delta_j| ~ exp(-r j), fitted while the terms are above `floor` times the largest."""
    sizes = [abs(term) for term in terms]
    used = [(j, math.log(size)) for j, size in enumerate(sizes, 1) if size > floor * max(sizes)]
    return -slope([j for j, _ in used], [logarithm for _, logarithm in used])


@dataclass(frozen=True)
class Efficiency:
    """Of a roulette: exact moments by enumeration of its truncations."""

    mean: float
    variance: float
    cost: float  # expected iterations

    @property
    def relative_efficiency(self) -> float:
        """ROE up to a constant: 1 / (E[cost] E[estimate^2]), times the square of what is estimated."""
        return self.mean**2 / (self.cost * (self.mean**2 + self.variance))


def value_efficiency(law: TruncationDistribution, terms: Tensor) -> Efficiency:
    """Of the estimate of sum_j Delta_j."""
    estimates = _all_weights(law, len(terms)).T @ terms  # (H,): one for each J
    probability = _probabilities(law, len(terms))
    mean = float(probability @ estimates)
    return Efficiency(mean, float(probability @ (estimates - mean) ** 2), law.mean)


def gradient_efficiency(law: TruncationDistribution, matrix: Tensor, derivative: Tensor, y: Tensor) -> Efficiency:
    """Of x_J^T dK x_J', the gradient of the quadratic term by two solves with independent truncations."""
    length = _maximum(law)
    survival = law.log_survival(torch.arange(1, length + 1)).exp()
    # U = S_k ends draw k at J = k: every possible solve, in one run of the solver.
    weighting = russian_roulette(law, length, uniforms=survival.tolist())
    outputs = [Output(0, k) for k in range(length)]
    result = conjugate_gradients(lambda v: matrix @ v, y[:, None], weighting, outputs, Identity(), tolerance=series.END)
    pairs = result.solutions.T @ derivative @ result.solutions  # (H, H)
    probability = _probabilities(law, length)
    mean = float(probability @ pairs @ probability)
    second = float(probability @ pairs.square() @ probability)
    shorter = 1.0 - survival
    longest = length - float((shorter**2)[1:].sum())  # E[max(J, J')] = sum_j 1 - (1 - S_j)^2
    return Efficiency(mean, second - mean**2, longest)


def _all_weights(law: TruncationDistribution, length: int) -> Tensor:
    """(length, length): column k has the weights of the draw that ends at k."""
    survival = law.log_survival(torch.arange(1, length + 1)).exp()
    weighting = russian_roulette(law, length, uniforms=survival.tolist())
    rows = [weighting.next(1.0) for _ in range(length)]
    return torch.tensor([row for row in rows if row is not None], dtype=torch.float64)


def _probabilities(law: TruncationDistribution, length: int) -> Tensor:
    return law.log_pmf(torch.arange(1, length + 1)).exp()


def _maximum(law: TruncationDistribution) -> int:
    assert law.maximum is not None
    return law.maximum


@dataclass(frozen=True)
class Rungs:
    """Differences of log|K_J| and of the quadratic term along a ladder of nested features, over many draws."""

    ladder: Ladder
    log_det: Tensor  # (draws, terms)
    quadratic: Tensor  # (draws, terms)


def rung_differences(model: RegressionModel, minimum: int, step: int, draws: int, seed: int) -> Rungs:
    """The terms of SS-RFF's series, all of them, the last against the exact kernel."""
    model = model.train()
    x, y = model.train_inputs[0], model.train_targets
    exact = series.exact_terms(*series.covariance(model))
    generator = torch.Generator().manual_seed(seed)
    ladder = Ladder.build(len(y), minimum, step, 1)
    found = torch.empty(draws, 2, ladder.length + 1, dtype=torch.float64)
    with torch.no_grad():
        form = read_kernel(model.covar_module, x)
        batch = Batch(form, model.likelihood.noise.reshape(()), y - model.mean_module(x))
        for k in range(draws):
            spectrum = draw_spectrum(components_of(form), ladder.largest // 2, generator)
            losses = FourierSystem(batch, spectrum, ladder.largest).losses(list(ladder.rungs), False)
            found[k, 0] = torch.tensor([*(loss.log_det for loss in losses), exact[0]])
            found[k, 1] = torch.tensor([*(loss.quadratic for loss in losses), exact[1]])
    differences = found.diff(dim=2)
    return Rungs(ladder, differences[:, 0], differences[:, 1])


def single_sample_variance(differences: Tensor, probabilities: Tensor) -> float:
    """Of Delta_J / P(J), given many draws of all terms (draws, terms)."""
    second = float((differences.square().mean(0) / probabilities).sum())
    return second - float(differences.mean(0).sum()) ** 2
