"""The report's file: self-contained, escaped, complete; its numbers against plain formulas."""

from __future__ import annotations

import re
import xml.dom.minidom
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rtgp._objectives import EstimateStats
from rtgp._report import Curve, Predictions, Report, Run, Surface, Table, coverage, nll, render, rmse, write_report
from rtgp._report.calibration import coverage_curve, pit, verdict
from rtgp._report.content import Array
from rtgp._report.training_plots import hyperparameter_names
from rtgp.errors import InputError, StorageError
from rtgp.training._history import make_row

HOSTILE = '<script>alert("x")</script> $x_1$ & \x07'


def history(steps: int, roulette: bool) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for step in range(steps):
        length = int(rng.geometric(0.1)) + 5 if roulette else 0
        rows.append(
            {
                "step": step,
                "loss": float(np.exp(-step)),
                "iterations": length,
                "residual": 0.1 if roulette else 0.0,
                "truncation_first": length,
                "truncation_second": length,
                "truncation_probes": length,
                "seconds": 0.1 * step,
                "noise": 0.1,
                "lengthscale[0]": 1.0 + step,
            }
        )
    return rows


def predictions(m: int = 500, kind: str = "held-out") -> Predictions:
    rng = np.random.default_rng(1)
    mean, std = rng.normal(size=m), rng.uniform(0.5, 2.0, size=m)
    return Predictions(mean + std * rng.normal(size=m), mean, std, kind)


def surface() -> Surface:
    x, y = np.linspace(0, 1, 12), np.linspace(0, 2, 10)
    values: Array = np.outer(y, x)
    values[0, 0] = np.nan
    return Surface(x, y, values, values + 1, np.random.default_rng(0).uniform(size=(30, 2)), HOSTILE, "b", "height")


def curve() -> Curve:
    x = np.linspace(0, 1, 50)
    return Curve(x, np.sin(x), np.ones(50), x[::5], np.sin(x[::5]), "a", HOSTILE)


def full_report(picture: Curve | Surface | None = None) -> Report:
    runs = [
        Run("cholesky", history(5, False), {"noise": 0.1}, {"noise": 0.01}, {"method": HOSTILE}, predictions()),
        Run(HOSTILE, history(8, True), {"noise": 0.1}, {}, {"method": "RRCG()"}, predictions()),
    ]
    table = Table(["method", HOSTILE], [["cholesky", "1.0"], ["rr-cg", HOSTILE]], "a note")
    return Report(HOSTILE, "words", runs, table, picture, {"data": HOSTILE}, "rtgp demo", "height")


class Page(HTMLParser):
    """Tags, ids and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.addresses.append(value or "")


@pytest.mark.parametrize("picture", [None, curve(), surface()], ids=["none", "curve", "surface"])
def test_self_contained_and_escaped(picture: Curve | Surface | None) -> None:
    text = render(full_report(picture))
    page = Page(text)
    assert "script" not in page.tags
    assert not {"link", "iframe", "object", "img"} & set(page.tags)
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?://", outside)
    assert "@import" not in text
    assert "Content-Security-Policy" in text
    assert len(page.ids) == len(set(page.ids))
    for address in page.addresses:
        assert not address.startswith("#") or address[1:] in page.ids


def test_every_section_is_there() -> None:
    page = Page(render(full_report(surface())))
    expected = {"results", "posterior", "training", "hyperparameters", "solves", "calibration", "residuals", "settings"}
    assert expected <= set(page.ids)
    # 2 maps, 2 losses, 2 traces, 1 truncation plot, 1 histogram, 1 residual, coverage, 2 PIT, 3 residual plots
    assert page.tags.count("svg") == 15


def test_figures_are_xml_and_take_the_colours_of_the_page() -> None:
    for drawn in re.findall(r"<svg .*?</svg>", render(full_report(curve())), flags=re.DOTALL):
        xml.dom.minidom.parseString(drawn)
        assert "var(--ink)" in drawn
        assert "#01010" not in drawn
    assert "prefers-color-scheme: dark" in render(full_report())


def test_a_run_without_anything_still_makes_a_page() -> None:
    page = Page(render(Report("title", "summary", [Run("only")])))
    assert "svg" not in page.tags
    assert "settings" in page.ids


def test_figures_leave_no_state_behind() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    render(full_report(curve()))
    assert dict(matplotlib.rcParams) == before


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(path, full_report())
    first = path.read_text(encoding="utf-8")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(StorageError, match=r"report\.html could not be written.*disk full"):
        write_report(path, Report("other", "", []))
    assert path.read_text(encoding="utf-8") == first
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_scores() -> None:
    found = Predictions(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]), np.array([1.0, 0.5, 2.0]))
    assert rmse(found) == pytest.approx(np.sqrt(5 / 3))
    density = [0.3989422804 * np.exp(-0.5 * z * z) / s for z, s in ((0, 1), (2, 0.5), (1, 2))]
    assert nll(found) == pytest.approx(-np.mean(np.log(density)))
    assert nll(found, unit=10.0) == pytest.approx(nll(found) - np.log(10.0))
    assert coverage(found, 0.9) == pytest.approx(2 / 3)


def test_right_predictions_look_right_and_wrong_ones_do_not() -> None:
    """m = 4000: no coverage is off by 0.03 with probability above 0.999; the wrong predictions show the power."""
    right = predictions(4000)
    stated, observed = coverage_curve(right)
    assert np.abs(stated - observed).max() < 0.03
    assert np.abs(np.histogram(pit(right), bins=10, range=(0, 1))[0] / 400 - 1).max() < 0.25
    wrong = Predictions(right.y, right.mean, right.std * 1.5)
    assert np.abs(stated - coverage_curve(wrong)[1]).max() > 0.1
    assert "too wide" in verdict(wrong)
    assert "too narrow" in verdict(Predictions(right.y, right.mean, right.std / 1.5))
    assert "as stated" in verdict(right)


@pytest.mark.parametrize(
    ("y", "mean", "std"), [([], [], []), ([1.0], [1.0, 2.0], [1.0]), ([np.nan], [0.0], [1.0]), ([0.0], [0.0], [0.0])]
)
def test_bad_predictions_are_refused(y: list[float], mean: list[float], std: list[float]) -> None:
    with pytest.raises(InputError):
        Predictions(np.array(y), np.array(mean), np.array(std))


def test_only_hyperparameters_are_drawn_as_such() -> None:
    """Whatever else a row of training holds has a picture of its own, or none."""
    stats = EstimateStats("rr-cg", torch.float32, 1.0, 1.0, 1.0, 0.0)
    row = make_row(0, 1.0, 0.1, 1.0, 0.1, stats, 0.1, 1.0, {"noise": 0.2, "lengthscale[0]": 1.0})
    assert hyperparameter_names([Run("one", [row])]) == ["noise", "lengthscale[0]"]
