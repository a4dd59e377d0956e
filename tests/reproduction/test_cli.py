"""rtgp reproduce, from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import reproduction
import rtgp
from rtgp._cli import app

sys.path.insert(0, str(Path(__file__).parent))
from counting import Counting

from waiting import PATIENCE


def run(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["reproduce", *(str(arg) for arg in args)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def counting(monkeypatch):
    def use(**settings):
        monkeypatch.setitem(reproduction.ITEMS, "counting", Counting(**settings))

    use()
    return use


def test_list():
    output = run("list")
    for name, spec in reproduction.ITEMS.items():
        assert name in output
        assert spec.title in output


def test_an_item(tmp_path, counting, monkeypatch):
    monkeypatch.setattr("reproduction.items.ITEMS", reproduction.ITEMS)
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


def test_it_is_found_beside_src_from_any_folder(tmp_path):
    """The root of the checkout is not on Python's path, nor is it the working folder."""
    source = Path(rtgp.__file__).parents[1]
    command = [sys.executable, "-m", "rtgp", "reproduce", "list"]
    plain = {**os.environ, "PYTHONPATH": str(source)}
    output = subprocess.check_output(command, cwd=tmp_path, env=plain, text=True, timeout=PATIENCE)
    assert "theorems" in output


def test_without_a_checkout_it_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(rtgp, "__file__", str(tmp_path / "site-packages" / "rtgp" / "__init__.py"))
    output = run("list", code=2)
    assert "clone of rtgp's repository" in output
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("args", [("fig7",), ("fig1", "--size", "huge"), ("fig1", "--only", "set")])
def test_bad_input_is_exit_code_2(args, tmp_path):
    assert "error" in run(*args, "--output", tmp_path, code=2)
