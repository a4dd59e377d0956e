"""Small formulas beside the estimators: running means of SS-RFF, the standard error of sgGP, counts of operations."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rtgp
from gp_models import airports, make
from preconditioners.test_policy import SMOOTH, automatic, call, system
from rtgp._baselines.sggp import _standard_error
from rtgp._objectives import Truncation
from rtgp._objectives.fourier_algebra import Loss, exact_operations, operations
from rtgp._objectives.protocol import EstimateStats
from rtgp._objectives.single_sample import log_gradient
from rtgp._objectives.term_sizes import TermSizes
from rtgp.truncation import ExponentialDecay


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


def test_what_an_estimate_does_not_say_is_nothing() -> None:
    """Statistics that a method does not have are zero, empty or no."""
    stats = EstimateStats("cholesky", torch.float64, 1.0, 2.0, 3.0, 4.0)
    left = [f.name for f in fields(EstimateStats) if f.default is not MISSING]
    assert {"iterations", "residual", "frozen", "value_error", "features", "operations"} <= set(left)
    assert [name for name in left if getattr(stats, name)] == ["outputs"]  # of which there is one
    assert stats.outputs == 1


def test_gradients_of_logarithms_leave_the_graph_and_pass_over_what_is_not_trained() -> None:
    outputscale, noise, unused = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.0, 0.5, 1.0))
    fixed = torch.tensor(3.0, dtype=torch.float64)
    batch: Any = SimpleNamespace(form=SimpleNamespace(tensors=[outputscale, fixed, unused]), noise=noise)
    loss = Loss(outputscale**2 * fixed + noise.exp(), 0.0, 0.0)
    wanted = torch.tensor([2.0 * 12.0, 0.5 * math.exp(0.5)], dtype=torch.float64)
    for _ in range(2):  # the surrogate is still to be differentiated by the optimiser
        torch.testing.assert_close(log_gradient(loss, batch), wanted)
    nothing: Any = SimpleNamespace(form=SimpleNamespace(tensors=[fixed]), noise=fixed)
    assert log_gradient(Loss(fixed, 0.0, 0.0), nothing).tolist() == [0.0]


def test_three_truncations_are_three() -> None:
    plan = Truncation.independent(ExponentialDecay(0.1))
    assert (plan.first, plan.second, plan.probes) == (0, 1, 2)
    assert plan.start(torch.Generator().manual_seed(0)).draws == 3


def test_plain_features_are_not_truncated_at_random() -> None:
    model = make(*airports(20))
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.RFF(features=8), torch.Generator().manual_seed(0))
    mll(model(*model.train_inputs), model.train_targets)
    assert mll.last is not None
    assert (mll.last.features, mll.last.truncations) == (8, ())


def test_a_reset_upkeep_is_a_new_one() -> None:
    of, upkeep = system(SMOOTH, 80), automatic()
    for _ in range(2):
        call(upkeep, of, 25)
    upkeep.reset()
    assert (upkeep._held, upkeep._builds, upkeep._calls) == (None, 0, 0)
    assert call(upkeep, of, 25) == call(automatic(), of, 25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_harmless_system_is_estimated_in_the_precision_of_its_model(dtype: torch.dtype) -> None:
    model = make(*airports(40, dtype=dtype))
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, rtgp.RRCG(), torch.Generator().manual_seed(0))
    mll(model(*model.train_inputs), model.train_targets)
    assert mll.last is not None
    assert mll.last.dtype == dtype
