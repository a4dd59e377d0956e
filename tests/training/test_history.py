"""A history as a sequence, and in a notebook."""

from __future__ import annotations

import sys
import types
from typing import Any
from xml.etree import ElementTree

import pytest

import rtgp
from rtgp.errors import SettingError
from rtgp.training._notebook_bar import in_notebook
from rtgp.training._progress import Progress

ROWS: list[dict[str, Any]] = [
    {"step": i, "loss": 1.0 / (i + 1), "residual": 0.1, "seconds": 0.5 * i, "noise": 0.2, "<b>": 3.0} for i in range(30)
]


def test_columns_rows_and_slices() -> None:
    history = rtgp.History(ROWS)
    assert history["loss"] == [row["loss"] for row in ROWS] == history.column("loss")
    assert history[-1] == ROWS[-1]
    assert list(history) == ROWS
    assert isinstance(history[2:5], rtgp.History)
    assert history[2:5]["step"] == [2, 3, 4]
    with pytest.raises(SettingError, match="step, loss"):
        history["lost"]
    with pytest.raises(IndexError):
        history[30]


def test_rows_are_copies() -> None:
    history = rtgp.History(ROWS)
    history[0]["loss"] = -1.0
    next(iter(history))["loss"] = -1.0
    assert history["loss"][0] == 1.0


def test_in_a_notebook() -> None:
    tree = ElementTree.fromstring(rtgp.History(ROWS)._repr_html_())
    cells = [[cell.text for cell in row] for row in tree.iter("tr")]
    assert cells[0] == ["step", "loss", "seconds", "noise", "<b>"]  # what says how a step went, then hyperparameters
    assert [row[0] for row in cells[1:]] == ["0", "1", "2", "3", "4", "…", "25", "26", "27", "28", "29"]
    assert "0 steps" in rtgp.History()._repr_html_()


def kernel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A notebook's IPython as far as the bar uses it; returns what is shown, one entry for each state."""
    shown: list[str] = []
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    handle = types.SimpleNamespace(update=shown.append)
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda made, display_id: shown.append(made) or handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_progress_in_a_notebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert not in_notebook()
    shown = kernel(monkeypatch)
    with Progress(True, steps=3) as bar:
        for row in ROWS[:3]:
            bar.update(row, 3)
    bars = [ElementTree.fromstring(f"<p>{made}</p>") for made in shown[:-1]]
    assert bars[0].find("progress").get("value") == "0"  # type: ignore[union-attr]
    assert bars[-1].find("progress").attrib == {"value": "3", "max": "3"}  # type: ignore[union-attr]
    assert "step 3 of at most 3, loss 0.3333" in bars[-1].find("span").text  # type: ignore[union-attr, operator]
    assert shown[-1] == ""  # it goes when training is over
    assert capsys.readouterr() == ("", "")
    with Progress(False, steps=3) as bar:
        bar.update(ROWS[0], 3)
    assert shown[-1] == ""
