"""Small formulas beside the estimators: running means of SS-RFF, the standard error of sgGP, counts of operations."""

from __future__ import annotations

import math

import pytest
import torch

from rtgp.objectives.fourier_algebra import exact_operations, operations
from rtgp.objectives.sggp import _standard_error
from rtgp.objectives.term_sizes import TermSizes


def test_sizes_of_terms_are_means_at_first_and_forget_later() -> None:
    past = TermSizes(8, 2)
    seen = [3.0, 1.0, 2.0]
    for value in seen:
        past.saw_features(1, torch.tensor([value, 0.0], dtype=torch.float64))
    squares = [value**2 for value in seen]
    assert past.sizes(1.0) == [pytest.approx(math.sqrt(sum(squares) / 3)), None]
    assert past.sizes(0.5) == [pytest.approx(0.5 * math.sqrt(sum(squares) / 3)), None]
    for _ in range(7):  # ten in all: each has the same weight so far
        past.saw_features(1, torch.tensor([0.0, 4.0], dtype=torch.float64))
    mean = (sum(squares) + 7 * 16.0) / 10
    assert past.sizes(1.0)[0] == pytest.approx(math.sqrt(mean))
    past.saw_features(1, torch.zeros(2, dtype=torch.float64))  # from here on the latest counts a tenth
    assert past.sizes(1.0)[0] == pytest.approx(math.sqrt(0.9 * mean))


def test_the_exact_term_and_its_scale_follow_the_moments() -> None:
    past = TermSizes(8, 2)
    assert past.scale() == 1.0
    exact, features = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2.0], [2.0, 2.0]))
    past.saw_exact(exact, features)
    assert past.scale() == pytest.approx(6.0 / 8.0)
    for scale in (0.0, 0.3, 1.0):
        assert past.sizes(scale) == [None, pytest.approx(float((exact - scale * features).norm()))]


def test_the_standard_error_is_that_of_a_draw_without_replacement() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert _standard_error(losses, 3) == 0.0
    assert _standard_error(losses, 12) == pytest.approx(math.sqrt(7.0 / 3.0 / 3.0 * (1.0 - 3.0 / 12.0)))
    assert math.isnan(_standard_error(losses[:1], 12))


def test_counts_of_operations() -> None:
    """2 n J^2 for the Gram matrix of the largest J; for each J as many for the gradient, and 4/3 J^3 to invert."""
    assert operations(10, [3]) == pytest.approx(2 * 10 * 9 + 2 * 10 * 9 + 4 / 3 * 27)
    assert operations(10, [3, 6]) == pytest.approx(2 * 10 * 36 + 2 * 10 * (9 + 36) + 4 / 3 * (27 + 216))
    assert exact_operations(10) == 1000.0
