"""The check at the end of Newton's method, on objectives without a Gaussian process."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from rtgp._objectives import EstimateStats
from rtgp.errors import RTGPError
from rtgp.training._check_end import check_end
from rtgp.training._evaluation import Evaluation
from rtgp.training._newton import NewtonSettings

SETTINGS = NewtonSettings()


@dataclass
class Valley:
    """Half of x^T H x, with gradients that a seed moves by a fixed draw. Has what `check_end` asks of a problem."""

    hessian: Tensor
    point: Tensor
    noise: float = 0.0
    fails_at: int | None = None  # evaluation
    asked: list[tuple[tuple[float, ...], int, bool]] = field(default_factory=list)
    seeds: int = 0

    def draw_seed(self) -> int:
        self.seeds += 1
        return self.seeds

    def move_to(self, point: Tensor) -> None:
        self.point = point

    def evaluate_with(
        self, seed: int, contrast: bool = False, hold: bool = False, complete: bool = False
    ) -> Evaluation:
        self.asked.append((tuple(self.point.tolist()), seed, complete))
        if self.fails_at is not None and len(self.asked) > self.fails_at:
            raise RTGPError("not definite")
        generator = torch.Generator().manual_seed(seed)
        draws = self.noise * torch.randn(2, len(self.point), generator=generator, dtype=torch.float64)
        gradient = self.hessian @ self.point + draws[0]
        value = 0.5 * float(self.point @ self.hessian @ self.point)
        stats = EstimateStats("", torch.float64, 0.0, 0.0, 1.0, 0.0)
        return Evaluation(
            self.point,
            10,
            value,
            value,
            float(gradient.norm()),
            stats,
            gradient,
            draws[1] if self.noise else None,
            None,
        )


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def metric(*diagonal: float) -> Tensor:
    """The information matrix with the floor that Newton's metric has."""
    return torch.diag(vector(*diagonal)) + SETTINGS.tolerance * torch.eye(len(diagonal)).double()


def test_at_the_optimum() -> None:
    valley = Valley(torch.eye(2).double(), vector(0.0, 0.0))
    check = check_end(valley, metric(1.0, 1.0), False, SETTINGS)
    assert check.confirmed
    assert len(valley.asked) == len(check.evaluations) == 1


def test_a_ridge_is_followed() -> None:
    """The metric is a hundred times the curvature along it, and promises a hundredth of what there is to gain."""
    valley = Valley(torch.diag(vector(1.0, 0.01)), vector(0.0, 0.5))
    gain = 0.5 * 0.01 * 0.25
    assert 0.5 * 0.005**2 / 1.0 < SETTINGS.tolerance < gain
    check = check_end(valley, metric(1.0, 1.0), False, SETTINGS)
    assert check.confirmed
    left = 0.5 * float(valley.point @ valley.hessian @ valley.point)
    assert left < 0.05 * gain


def test_a_long_ridge_is_followed_by_steps_that_grow() -> None:
    """The lengthscale of an input that does not matter goes to infinity, and a reach of 1 would take 25 steps."""
    valley = Valley(torch.diag(vector(1.0, 1e-4)), vector(0.0, 25.0))
    check = check_end(valley, metric(1.0, 1e-3), False, SETTINGS)
    assert check.confirmed
    assert abs(float(valley.point[1])) < 1.0
    assert len(valley.asked) <= 15


def test_what_is_followed_is_not_truncated() -> None:
    valley = Valley(torch.diag(vector(1.0, 0.01)), vector(0.0, 0.5))
    check_end(valley, metric(1.0, 1.0), False, SETTINGS)
    there = [complete for point, _, complete in valley.asked if point == (0.0, 0.5)]
    assert there == [False, True]  # the check, and where the ridge begins
    assert not valley.asked[-1][2]  # the end is checked as any other point


def test_no_point_is_evaluated_twice_with_the_same_draws() -> None:
    """Those of the check are drawn once more, without truncation, where the ridge begins."""
    for noise in (0.0, 1e-4):
        valley = Valley(torch.diag(vector(1.0, 0.01)), vector(0.0, 0.5), noise)
        check_end(valley, metric(1.0, 1.0), noise > 0.0, SETTINGS)
        assert len(valley.asked) >= 5
        assert len(set(valley.asked)) == len(valley.asked)


def test_what_is_lost_in_noise_is_not_followed() -> None:
    valley = Valley(torch.eye(2).double(), vector(0.0, 1e-3), noise=0.1)
    assert check_end(valley, metric(1.0, 1.0), True, SETTINGS).confirmed
    assert len(valley.asked) == SETTINGS.checked


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_failures_leave_a_point_that_was_good(fails_at: int) -> None:
    valley = Valley(torch.diag(vector(1.0, 0.01)), vector(0.0, 0.5), fails_at=fails_at)
    check = check_end(valley, metric(1.0, 1.0), False, SETTINGS)
    assert check.confirmed == (fails_at == 0) or len(check.evaluations) == 1
    good = {point for point, *_ in valley.asked[: max(1, fails_at)]}
    assert tuple(valley.point.tolist()) in good
    assert math.isfinite(float(valley.point.norm()))


def test_a_ridge_that_cannot_be_followed_is_not_called_the_end() -> None:
    """The gradient promises more than the tolerance, and no evaluation away from the point succeeds."""
    valley = Valley(torch.diag(vector(1.0, 0.01)), vector(0.0, 3.0), fails_at=1)
    check = check_end(valley, metric(0.02, 0.02), False, SETTINGS)
    assert not check.confirmed
    assert valley.point.tolist() == [0.0, 3.0]
