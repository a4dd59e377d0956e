"""rtgp diagnose from end to end on small tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from rtgp._cli import app


def run(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["diagnose", *(str(arg) for arg in args)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(120, 2))
    y = np.sin(9 * X[:, 0]) + X[:, 1] + 0.02 * rng.normal(size=120)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "price": y}).to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv"


def test_a_table(table: Path) -> None:
    short = run(table, "-t", "price", "--iterations", 3, "--rank", 0, "--draws", 4)
    assert "lengthscale[b]" in short
    assert "CG(3) would" in short
    assert "removes it" in short
    long = run(table, "-t", "price", "--iterations", 500, "--draws", 4, "--points", 80, "--kernel", "matern32")
    assert "n = 80" in long
    assert "CG(500) has converged here" in long


def test_a_saved_model(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    fitted = CliRunner().invoke(app, ["fit", str(table), "-t", "price", "-o", str(folder), "--steps", "5"])
    assert fitted.exit_code == 0, fitted.output
    assert "the model's present ones" in run(folder, "--draws", 2)
    assert "--points is for tables" in " ".join(run(folder, "--points", 50, code=2).split())


@pytest.mark.parametrize(
    "args, words",
    [
        (["--kernel", "cubic"], "must be one of"),
        (["--dtype", "float16"], "--dtype must be one of"),
        (["--target", "cost"], "cost"),
        (["--points", 1000], "between 1 and 120"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(table: Path, args: list[object], words: str) -> None:
    output = run(table, *args, code=2)
    assert words in output
    assert output.count("rtgp: error:") == 1
    assert "Traceback" not in output


def test_a_file_that_is_not_there() -> None:
    assert "rtgp: error:" in run("nowhere.csv", code=2)
