"""`newton.step` as a function of a state and an evaluation: nothing is trained here."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from rtgp._objectives import EstimateStats
from rtgp.training import _newton as newton
from rtgp.training._evaluation import Evaluation
from rtgp.training._newton import NewtonSettings, NewtonState

N = 50  # data points
SETTINGS = NewtonSettings()


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def evaluation(point: Tensor, objective: float, gradient: Tensor, error: float = 0.0, **more: Tensor) -> Evaluation:
    """error: of the objective per point."""
    stats = EstimateStats("", torch.float64, 0.0, 0.0, 1.0, 0.0, value_error=N * error)
    given = {"contrast": None, "information": None, **more}
    return Evaluation(point, N, objective, objective, float(gradient.norm()), stats, gradient, **given)


def parabola(point: Tensor, noise: Tensor | None = None, **more: object) -> Evaluation:
    """|x|^2 / 2, its gradient, with noise if there is any, and its Hessian."""
    gradient = point if noise is None else point + noise
    return evaluation(point, 0.5 * float(point @ point), gradient, information=torch.eye(2).double(), **more)


def first(start: Tensor) -> NewtonState:
    return newton.step(NewtonState.at(start, SETTINGS), parabola(start), SETTINGS)


class TestAcceptance:
    def test_a_newton_step_within_its_box(self) -> None:
        state = first(vector(0.5, -3.0))
        torch.testing.assert_close(state.velocity, vector(-0.5, 1.0), atol=1e-3, rtol=0.0)
        assert (state.done, state.settled, state.reach) == (1, 0, 1.0)
        assert state.loss == pytest.approx(0.5 * 9.25)

    def test_momentum(self) -> None:
        one = first(vector(5.0, 0.0))
        two = newton.step(one, parabola(one.point), SETTINGS)
        torch.testing.assert_close(two.velocity, vector(-1.3, 0.0))

    @pytest.mark.parametrize("sigmas, back", [(3.0, False), (5.0, True)])
    @pytest.mark.parametrize("known", ["before", "after"])
    def test_a_rise_is_judged_by_the_standard_errors_of_both_values(
        self, sigmas: float, back: bool, known: str
    ) -> None:
        """Four standard errors and the tolerance; ten times the error, or a tenth, would decide otherwise."""
        error = 0.1
        before, after = (error, 0.0) if known == "before" else (0.0, error)
        start = vector(2.0, 0.0)
        one = newton.step(NewtonState.at(start, SETTINGS), parabola(start, error=before), SETTINGS)
        assert one.loss_error == pytest.approx(before)
        found = parabola(one.point, error=after)
        found = replace(found, objective=one.loss + sigmas * error + SETTINGS.tolerance)
        assert newton.rose(one, found, SETTINGS) == back
        two = newton.step(one, found, SETTINGS)
        torch.testing.assert_close(two.accepted, start if back else one.point)

    def test_back_half_way(self) -> None:
        one = first(vector(2.0, 0.0))
        two = newton.step(one, replace(parabola(one.point), objective=10.0), SETTINGS)
        torch.testing.assert_close(two.point, one.accepted + 0.5 * one.velocity)
        assert two.reach == 0.5
        assert two.done == 2
        three = newton.step(two, parabola(two.point), SETTINGS)
        assert three.reach == 0.75
        torch.testing.assert_close(three.accepted, two.point)

    def test_an_unknown_error_counts_as_none(self) -> None:
        found = parabola(vector(1.0, 1.0), error=math.nan)
        assert math.isnan(found.objective_error)
        assert newton.known_error(found) == 0.0
        assert newton.known_error(parabola(vector(1.0, 1.0), error=0.3)) == pytest.approx(0.3)

    def test_the_point_of_the_evaluation_counts(self) -> None:
        """A coordinate may have stopped at the end of its range."""
        one = first(vector(5.0, 0.0))
        stopped = vector(4.5, 0.0)
        torch.testing.assert_close(newton.step(one, parabola(stopped), SETTINGS).accepted, stopped)


class TestSettled:
    def run(self, steps: int, noise: float, seed: int = 0, start: tuple[float, float] = (0.0, 0.0)) -> NewtonState:
        generator = torch.Generator().manual_seed(seed)
        state = NewtonState.at(vector(*start), SETTINGS)
        for _ in range(steps):
            draws = noise * torch.randn(2, 2, generator=generator, dtype=torch.float64)
            state = newton.step(state, parabola(state.point, draws[0], contrast=draws[1], error=1.0), SETTINGS)
        return state

    def test_the_point_is_the_mean_of_independent_estimates(self) -> None:
        state = self.run(40, 0.1)
        assert state.settled > 20
        assert float(state.accepted.norm()) < 0.1
        assert newton.noise_of(state, SETTINGS) == pytest.approx(0.01, rel=0.8)

    def test_it_ends_when_the_noise_left_is_small(self) -> None:
        assert newton.finished(self.run(6, 1e-4), SETTINGS)
        assert not newton.finished(self.run(6, 0.3), SETTINGS)
        assert newton.too_noisy(self.run(6, 0.3), SETTINGS, 60)
        assert not newton.too_noisy(self.run(6, 1e-4), SETTINGS, 60)

    def test_it_does_not_end_on_its_way(self) -> None:
        assert not newton.finished(self.run(6, 1e-4, start=(20.0, 0.0)), SETTINGS)


class TestState:
    def test_a_step_changes_nothing(self) -> None:
        one = first(vector(2.0, 1.0))
        before = {field.name: getattr(one, field.name) for field in fields(one)}
        copies = {name: value.clone() for name, value in before.items() if isinstance(value, Tensor)}
        newton.step(one, parabola(one.point, contrast=vector(0.1, 0.0)), SETTINGS)
        for name, value in before.items():
            assert getattr(one, name) is value
            if name in copies:
                assert torch.equal(value, copies[name])

    def test_saved_and_restored(self) -> None:
        state = TestSettled().run(7, 0.1)
        again = newton.restored(state.saved(), NewtonState.at(vector(0.0, 0.0), SETTINGS), SETTINGS, 60)
        for field in fields(state):
            one, two = getattr(state, field.name), getattr(again, field.name)
            assert torch.equal(one, two) if isinstance(one, Tensor) else one == two

    def test_a_checkpoint_of_the_first_version(self) -> None:
        """It had lists in the place of tuples, and neither stiffness nor gradient."""
        state = TestSettled().run(7, 0.1)
        old = {**state.saved(), "gains": list(state.gains), "noises": list(state.noises)}
        del old["stiffness"], old["gradient"]
        again = newton.restored(old, NewtonState.at(vector(0.0, 0.0), SETTINGS), SETTINGS, 60)
        assert again.stiffness == 1.0
        assert again.gains == state.gains

    @pytest.mark.parametrize(
        "change",
        [
            {"done": 61}, {"done": -1}, {"settled": -1}, {"reach": 0.0}, {"reach": 2.0}, {"stiffness": 5.0},
            {"gains": [math.nan]}, {"loss": math.nan}, {"metric": torch.ones(3, 3)},
            {"accepted": vector(math.nan, 0.0)}, {"gradients": vector(1.0, 2.0)[None]},
        ],
        ids=str,
    )  # fmt: skip
    def test_what_makes_no_sense_is_refused(self, change: dict[str, object]) -> None:
        saved = {**TestSettled().run(7, 0.1).saved(), **change}
        with pytest.raises(ValueError, match=r"of shape|NaN|step"):
            newton.restored(saved, NewtonState.at(vector(0.0, 0.0), SETTINGS), SETTINGS, 60)


def test_settings_are_obeyed() -> None:
    """An ablation sets an argument."""
    start = vector(5.0, 0.0)
    short = NewtonSettings(reach=0.25, momentum=0.0)
    state = NewtonState.at(start, short)
    for _ in range(2):
        state = newton.step(state, parabola(state.point), short)
    torch.testing.assert_close(state.velocity, vector(-0.25, 0.0))
