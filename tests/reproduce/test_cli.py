"""rtgp reproduce, from the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rtgp import reproduce
from rtgp.cli import app

sys.path.insert(0, str(Path(__file__).parent))
from counting import Counting


def run(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["reproduce", *(str(arg) for arg in args)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def counting(monkeypatch):
    def use(**settings):
        monkeypatch.setitem(reproduce.ITEMS, "counting", Counting(**settings))

    use()
    return use


def test_list():
    output = run("list")
    for name, spec in reproduce.ITEMS.items():
        assert name in output
        assert spec.title in output


def test_an_item(tmp_path, counting, monkeypatch):
    monkeypatch.setattr("rtgp.reproduce.items.ITEMS", reproduce.ITEMS)
    output = run("counting", "--quick", "--output", tmp_path)
    assert "reproduced" in output
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "results" / "counting.csv").read_text().count("\n") == 7
    run("counting", "--output", tmp_path, "--only", "k=6,7")
    assert (tmp_path / "results" / "counting.csv").read_text().count("\n") == 11


def test_a_failed_check_is_exit_code_1(tmp_path, counting):
    counting(right=False)
    assert "does not hold: squares" in run("counting", "--quick", "--output", tmp_path, code=1)


def test_quick_output_has_a_place_of_its_own(tmp_path, counting, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("counting", "--quick")
    assert (tmp_path / "reproduction" / "quick" / "report.html").exists()


def test_the_time_limit_leaves_the_rest(tmp_path, counting):
    counting(pause=0.05)
    assert "incomplete" in run("counting", "--output", tmp_path, "--time-limit", 0.01)


@pytest.mark.parametrize("args", [("fig7",), ("fig1", "--size", "huge"), ("fig1", "--only", "set")])
def test_bad_input_is_exit_code_2(args, tmp_path):
    assert "error" in run(*args, "--output", tmp_path, code=2)
