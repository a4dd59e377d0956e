"""A cell of the tables: scores against a direct computation, and going on after the time was up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from reproduction import Setting
from reproduction.evaluation import Training, evaluate, timed
from reproduction.models import exact_objective, fitted_exactly, load, train
from reproduction.spec import CellUnfinishedError
from reproduction.specs import table1


@pytest.fixture(scope="module")
def setting(small_sets):
    return Setting(data_dir=small_sets)


@pytest.fixture(scope="module")
def data(setting):
    return load(setting, "elevators", 10, 120)


def test_data_are_standardised_on_the_whole_training_part(setting):
    whole, part = load(setting, "elevators", 10), load(setting, "elevators", 10, 50)
    assert torch.equal(whole.x[:50], part.x)
    assert float(whole.y.mean()) == pytest.approx(0, abs=1e-9)
    assert float(whole.y.std(correction=0)) == pytest.approx(1, abs=1e-9)
    assert len(whole.y_test) == 180


def test_scores_are_those_of_the_exact_posterior(setting, data):
    row = evaluate(setting, data, Training("cholesky", 0, "lbfgs", 0))
    model = fitted_exactly(data.x, data.y)
    assert row["loss"] == pytest.approx(exact_objective(model), abs=1e-4)
    lengths = model.covar_module.base_kernel.lengthscale.detach()
    scale, noise = model.covar_module.outputscale.item(), model.likelihood.noise.item()
    mean = model.mean_module.constant.item()

    def kernel(a, b):
        return scale * torch.exp(-0.5 * torch.cdist(a / lengths, b / lengths).square())

    inverse = torch.linalg.inv(kernel(data.x, data.x) + noise * torch.eye(len(data.y), dtype=torch.float64))
    cross = kernel(data.x_test, data.x)
    error = data.y_test - mean - cross @ inverse @ (data.y - mean)
    variance = scale + noise - (cross @ inverse * cross).sum(1)
    assert row["rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=2e-2)
    nll = 0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi)).mean()
    assert row["nll"] == pytest.approx(float(nll), abs=2e-2)
    assert row["nll_lanczos"] == pytest.approx(row["nll"], abs=0.1)  # rank 100 of 120


@pytest.mark.parametrize("schedule", ["multistep 25 0.01", "halving 25 0.05"])
def test_goes_on_after_the_time_was_up(setting, data, tmp_path, schedule):
    whole = evaluate(setting, data, Training("rr-cg", 20, schedule, 3))
    left = iter([False] * 14 + [True] * 100)
    short = Setting(data_dir=setting.data_dir, time_is_up=lambda: next(left))
    with pytest.raises(CellUnfinishedError, match="time was up"):
        evaluate(short, data, Training("rr-cg", 20, schedule, 3, checkpoint=tmp_path))
    again = evaluate(setting, data, Training("rr-cg", 20, schedule, 3, checkpoint=tmp_path))
    for name in ("rmse", "nll", "loss", "steps"):
        assert again[name] == whole[name]


@pytest.mark.parametrize("method", ["svgp", "poe", "sggp", "rff"])
def test_baselines(setting, data, method):
    size, schedule = (40, "halving 10 0.05") if method == "rff" else (0, "epochs 10")
    row = evaluate(setting, data, Training(method, size, schedule, 0))
    assert 0 < row["rmse"] < 1.1  # the standard deviation of the target is 1
    assert np.isfinite(row["nll"])


@pytest.mark.parametrize("method", ["svgp", "poe"])
def test_baselines_see_every_column(setting, data, method):
    """Repeated ones too, as the other methods do."""
    x, x_test = (torch.cat([x, x[:, :2]], dim=1) for x in (data.x, data.x_test))
    row = evaluate(setting, replace(data, x=x, x_test=x_test), Training(method, 0, "epochs 10", 0))
    assert 0 < row["rmse"] < 1.1


@pytest.mark.parametrize(
    "method, size, schedule, steps, measured",
    [
        ("rr-cg", 20, "multistep 40 0.01", 40, 14),
        ("rff", 40, "halving 30 0.05", 30, 14),
        ("rr-cg", 20, "multistep 5 0.01", 5, 5),
    ],
)
def test_a_few_steps_tell_the_time_of_many(setting, data, method, size, schedule, steps, measured):
    row = timed(setting, data, Training(method, size, schedule, 0))
    assert (row["steps"], row["measured"], row["points"]) == (steps, measured, len(data.y))
    assert 0 < row["seconds"] < 60


@pytest.mark.parametrize("method, schedule", [("cholesky", "lbfgs"), ("svgp", "epochs 500"), ("poe", "epochs 500")])
def test_the_time_of_the_others(setting, data, method, schedule):
    row = timed(setting, data, Training(method, 0, schedule, 0))
    assert row["seconds"] > 0
    if method == "svgp":
        assert row["measured"] == 100
        assert row["steps"] == 500  # of all points each
    else:
        assert row["steps"] == row["measured"]


def test_the_time_of_a_run_that_was_cut_is_not_known(setting, data, tmp_path):
    left = iter([False] * 2 + [True] * 100)
    short = Setting(data_dir=setting.data_dir, time_is_up=lambda: next(left))
    with pytest.raises(CellUnfinishedError, match="time was up"):
        timed(short, data, Training("cholesky", 0, "lbfgs", 0, checkpoint=tmp_path))
    assert timed(setting, data, Training("cholesky", 0, "lbfgs", 0, checkpoint=tmp_path))["seconds"] > 0


def test_the_papers_course_is_told_by_splits_that_both_have():
    rows = [
        {"set": name, "method": method, "split": split, "nll": nll, "loss": loss, "loss_error": 0.3}
        for name, method, split, nll, loss in [
            ("pol", "rr-cg", 10, 1.0, 2.0),
            ("pol", "rr-cg", 20, 3.0, 5.0),
            ("pol", "cg", 10, 0.75, 0.0),
            ("pol", "cg", 30, 9.0, 9.0),
            ("pol", "cholesky", 20, 0.0, 4.5),
            ("protein", "rr-cg", 10, 1.0, 2.0),
            ("protein", "cg", 10, 1.0, 2.0),
            ("protein", "cholesky", 10, 1.0, 1.5),
        ]
    ]
    words, correction = table1._course_of_the_paper(rows)
    assert words.endswith("per point: PoleTele +0.500 ± 0.212, Protein +0.500 ± 0.300.")
    assert "on PoleTele (" in correction  # not on Protein, whose gap is within two errors
    assert table1._course_of_the_paper(rows[5:])[1] == ""
    (check,) = table1._beside_cg(rows)
    assert not check.passed
    assert "PoleTele +0.250" in check.words
    assert table1._beside_cg(rows[5:])[0].passed
    assert table1._beside_cg(rows[:2]) == []


def test_a_path_keeps_its_states(setting, data):
    model = fitted_exactly(data.x, data.y)
    path = train(model, setting.methods["cholesky"](0), torch.optim.Adam, 7, 0.05, 0, 3, setting)
    assert path.steps == (0, 3, 6, 7)
    assert path.ended == ""
    assert len({float(state["covar_module.raw_outputscale"]) for state in path.states}) == 4


def test_order_and_schedules_of_the_table():
    """One split of everything before the next; within it what matters most first; the paper's schedules."""
    cells = table1.SPEC.cells("full")
    assert [cell["method"] for cell in cells[-3:]] == ["cholesky-paper"] * 3
    splits = [cell["split"] for cell in cells[:-3]]
    assert splits == sorted(splits)
    first = [cell["method"] for cell in cells if cell["split"] == 10]
    core = [method in table1.CORE for method in first]
    assert core == sorted(core, reverse=True)
    found = {(cell["set"], cell["method"]): cell["schedule"] for cell in cells}
    assert found["pol", "rr-cg"] == found["bike", "cholesky-paper"] == "multistep 1500 0.01"
    assert found["protein", "cg"] == "multistep 200 0.04"
    assert found["keggdirected", "rff"] == "halving 500 0.005"
    assert found["keggundirected", "rff"] == "halving 500 0.001"
    assert len({cell["set"] for cell in cells}) == 7
    large = {cell["schedule"] for cell in table1.SPEC.further_cells("full") if cell["method"] == "rr-cg"}
    assert large == {"sggp+multistep 300 0.01"}
