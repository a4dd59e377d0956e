"""The stopping criterion: no false stop by noise, and a stop where the loss is flat."""

from __future__ import annotations

import itertools

import pytest
import torch

from rtgp.training._plateau import Plateau
from rtgp.training._schedule import Schedule


def noisy(slope: float, noise: float, seed: int, steps: int = 40) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    return (-slope * torch.arange(steps) + noise * torch.randn(steps, generator=generator)).tolist()


class TestPlateau:
    def test_a_flat_loss_of_little_noise_meets_it(self):
        assert Plateau(20, 1e-3).met(noisy(0.0, 1e-4, 0))

    def test_a_falling_loss_does_not(self):
        """A fall of 2e-3 in a window, standard error 1.6e-4: false alarms have a probability below 1e-9."""
        assert not any(Plateau(20, 1e-3).met(noisy(1e-4, 5e-4, seed)) for seed in range(200))

    def test_noise_alone_cannot_end_the_training(self):
        """However flat, a loss whose noise hides the tolerance goes on (a naive 'no better than before' stops). False
        alarm 1e-6: the standard error is six times the tolerance; and of naive stops 75 are expected, 40 five standard
        deviations fewer."""
        runs = [noisy(1e-4, 0.02, seed) for seed in range(200)]
        assert not any(Plateau(20, 1e-3).met(losses) for losses in runs)
        naive = sum(sum(losses[20:]) >= sum(losses[:20]) for losses in runs)
        assert naive > 40

    def test_standard_error(self):
        """Of the fall of independent noise: sqrt(2 / window) times its sd. False alarm 5e-4: the mean of 100 scatters
        by 1.3%."""
        errors = [Plateau(20, 1e-3).measure(noisy(0.01, 0.1, seed))[1] for seed in range(100)]
        assert sum(errors) / 100 == pytest.approx(0.1 * (2 / 20) ** 0.5, rel=0.05)

    def test_needs_two_windows(self):
        assert Plateau(20, 1e-3).measure([0.0] * 39) is None


class TestSchedule:
    def test_cosine_falls_over_the_last_part(self):
        schedule = Schedule.of("cosine", 0.1, 100)
        rates = [schedule.rate(step) for step in range(100)]
        assert rates[:60] == [0.1] * 60
        assert all(a > b for a, b in itertools.pairwise(rates[59:]))
        assert 0 < rates[-1] < 1e-3

    def test_comes_forward_on_a_plateau(self):
        schedule = Schedule.of("cosine", 0.1, 300)
        schedule.decay_now(60)
        assert (schedule.decay_from, schedule.end) == (60, 100)
        assert schedule.rate(99) < 1e-3

    def test_never_runs_longer_for_it(self):
        schedule = Schedule.of("cosine", 0.1, 100)
        schedule.decay_now(95)
        assert schedule.end == 100
