"""Maps of very many points: means of cells, in a small file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rtgp._report import Predictions, Report, Run, Surface, render
from rtgp._report.raster import MOST_CELLS, raster
from rtgp.errors import InputError


def test_cells_have_the_mean_of_their_points() -> None:
    random = np.random.default_rng(0)
    points, values = random.normal(size=(500, 2)) * (3.0, 0.01), random.normal(size=500)
    found = raster(points, values)
    side = len(found.x)
    assert found.values.shape == (side, side)
    assert side == int(np.sqrt(500 / 4))
    half = np.array([found.x[1] - found.x[0], found.y[1] - found.y[0]]) / 2
    for row in range(side):
        for column in range(side):
            middle = np.array([found.x[column], found.y[row]])
            inside = (np.abs(points - middle) <= half * (1 + 1e-9)).all(axis=1)
            if inside.any():
                assert found.values[row, column] == pytest.approx(values[inside].mean())
            else:
                assert np.isnan(found.values[row, column])


@pytest.mark.parametrize("points", [np.zeros((1, 2)), np.zeros((50, 2)), np.arange(40.0).reshape(20, 2) * [1.0, 0.0]])
def test_points_on_a_line_or_in_one_place(points: np.ndarray) -> None:
    found = raster(points, np.ones(len(points)))
    assert np.nanmin(found.values) == np.nanmax(found.values) == 1.0


def many(n: int) -> Report:
    random = np.random.default_rng(1)
    points = random.uniform(size=(n, 2)) * (10.0, 6.0)
    truth = np.sin(points[:, 0]) * np.cos(points[:, 1])
    x, y = np.linspace(0, 10, 100), np.linspace(0, 6, 75)
    mean = np.cos(y)[:, None] * np.sin(x)
    shown = Surface(x, y, mean, np.ones_like(mean), points, "east", "north", "height", data=truth)
    std = np.ones(n)
    predictions = Predictions(truth + random.normal(size=n), truth, std, places=points)
    return Report("many", "words", [Run("rr-cg", predictions=predictions)], None, shown, {}, "", "height")


def test_a_map_of_a_million_points_is_a_small_file() -> None:
    few, page = render(many(20_000)), render(many(1_000_000))
    assert "the mean of the 1,000,000 points in each cell" in page
    assert page.count("<image") >= 4
    assert len(page) < 2_000_000
    assert len(page) < 2 * len(few)
    assert len(raster(np.random.default_rng(0).uniform(size=(1_000_000, 2)), np.zeros(1_000_000)).x) == MOST_CELLS


def test_without_data_and_places_there_are_two_maps() -> None:
    report = many(100)
    plain = replace(report, picture=replace(report.picture, data=None), runs=[])
    assert render(plain).count("<image") < render(report).count("<image")


def test_places_belong_to_predictions() -> None:
    with pytest.raises(InputError, match=r"places must be \(3, 2\). Got \(2, 2\)"):
        Predictions(np.zeros(3), np.zeros(3), np.ones(3), places=np.zeros((2, 2)))
