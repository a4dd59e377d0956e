"""Bad input: each its own sentence on one line, exit code 2, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rtgp._cli import app
from rtgp._estimator.regressor import GPRegressor

GOOD = "a,b,price\n" + "\n".join(f"{i},{i * i % 7},{i % 5}" for i in range(12)) + "\n"


def refused(*args: object, code: int = 2) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.output.splitlines() if line.startswith("rtgp: error: ")]
    assert len(lines) == 1, result.output
    return lines[0]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "data.csv").write_text(GOOD)
    args = ["fit", folder / "data.csv", "--target", "price", "-o", folder / "model", "--steps", 2]
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return folder / "model"


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [
        (GOOD, "prize", ["no target column 'prize'", "'price'"]),
        ("a,b,price\n1,2,3\n1,red,4\n", "price", ["row 2", "'b'", "'red'"]),
        ("", "price", ["empty"]),
        ("a,b,price\n", "price", ["no rows"]),
        ("a,b,price\n1,2,3\n", "price", ["at least 2 rows"]),
        ("a,b,price\n1,2,3\n2,3,3\n4,5,3\n", "price", ["'price'", "constant"]),
        ("a,b,price\n1,2,3\n1,,4\n2,3,4\n", "price", ["row 2", "'b'", "missing (NaN)"]),
        ("a,b,price\n1,2,3\n1,2\n", "price", ["row 2", "'price'"]),
        ("price\n1\n2\n", "price", ["input column"]),
        ("a,price\n1,2\n1,3\n1,4\n", "price", ["constant", "'a'"]),
    ],
    ids=["target", "text", "empty", "header only", "one row", "constant", "nan", "ragged", "no inputs", "idle inputs"],
)
@pytest.mark.parametrize("command", ["fit", "compare"])
def test_tables(tmp_path: Path, command: str, text: str, target: str, words: list[str]) -> None:
    data = tmp_path / "data.csv"
    data.write_text(text)
    if command == "compare" and words == ["constant", "'a'"]:
        pytest.skip("too few rows to split, which is another sentence")
    extra = ["--output", tmp_path / "model"] if command == "fit" else []
    if "missing (NaN)" in words:  # a gap is filled, and one row is as good as another, unless that is switched off
        extra += ["--preprocess", "none"]
    said = refused(command, data, "--target", target, "--report", tmp_path / "r.html", *extra)
    for word in words:
        assert word in said
    assert names(tmp_path) == ["data.csv"]


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such file" in refused("fit", tmp_path / "none.csv", "-t", "y", "-o", tmp_path / "m")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--kernel", "cosmic"], "matern32"),
        (["--kernel", "rbf + periodic(town)"], "'town', which is not among those that are used: 'a', 'b'"),
        (["--method", "magic"], "rr-cg"),
        (["--dtype", "int8"], "float64"),
        (["--device", "abacus"], "abacus"),
        (["--holdout", "1.5"], "--holdout"),
        (["--learning-rate", "-1"], "--learning-rate"),
    ],
)
def test_settings(tmp_path: Path, options: list[str], word: str) -> None:
    (tmp_path / "data.csv").write_text(GOOD)
    said = refused("fit", tmp_path / "data.csv", "-t", "price", "-o", tmp_path / "m", *options)
    assert word in said
    assert names(tmp_path) == ["data.csv"]


def test_a_checkpoint_of_another_fit(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(GOOD)
    (tmp_path / "other.csv").write_text(GOOD.replace("1,1,1", "1,1,9"))
    fit = ["-t", "price", "-o", tmp_path / "m", "--checkpoint", tmp_path / "state", "--steps", 2]
    args = ["fit", tmp_path / "data.csv", *fit]
    assert CliRunner().invoke(app, [str(arg) for arg in args]).exit_code == 0
    before = names(tmp_path)
    for other, word in (
        (["fit", tmp_path / "other.csv", *fit], "data"),
        ([*args, "--seed", 1], "seed"),
        ([*args, "--kernel", "matern32"], "model"),
        ([*args, "--method", "rr-cg"], "method"),
    ):
        said = refused(*other, "--overwrite")
        assert "another problem" in said
        assert word in said
    assert names(tmp_path) == before


def test_a_checkpoint_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(GOOD)
    fit = ["fit", tmp_path / "data.csv", "-t", "price", "-o", tmp_path / "m", "--checkpoint"]
    assert "is a file" in refused(*fit, tmp_path / "data.csv")
    assert "does not exist" in refused(*fit, tmp_path / "no" / "state")
    for folder in (tmp_path / "m", tmp_path / "m" / "state"):
        assert "lies in the output" in refused(*fit, folder)
    assert names(tmp_path) == ["data.csv"]


def test_usage_errors_are_bad_input() -> None:
    for args in (["fit"], ["fit", "x.csv", "--steps", "0"], ["nonsense"]):
        assert CliRunner().invoke(app, args).exit_code == 2


def test_outputs_that_cannot_be_written(tmp_path: Path, model: Path) -> None:
    (tmp_path / "data.csv").write_text(GOOD)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    before = names(tmp_path)
    fit = ["fit", tmp_path / "data.csv", "-t", "price", "-o"]
    assert "is a file" in refused(*fit, tmp_path / "data.csv")
    assert "other files" in refused(*fit, tmp_path / "full")
    assert "does not exist" in refused(*fit, tmp_path / "no" / "model")
    assert "is a folder" in refused("predict", model, tmp_path / "data.csv", "-o", _folder(tmp_path / "full.csv"))
    assert ".csv" in refused("predict", model, tmp_path / "data.csv", "-o", tmp_path / "out.xlsx")
    assert names(tmp_path) == sorted([*before, "full.csv"])


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("text", ["a,c\n1,2\n", "a\n1\n", "1,2,3,4\n"], ids=["other", "fewer", "unnamed"])
def test_different_columns(model: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "new.csv").write_text(text)
    said = refused("predict", model, tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert "'b'" in said
    assert "trained with" in said
    assert names(tmp_path) == ["new.csv"]


def test_nan_at_predict_time(model: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("a,b\n1,2\n3,\n")
    said = refused("predict", model, tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert "row 2, column 'b'" in said


@pytest.mark.parametrize("command", ["predict", "info"])
def test_not_a_model(model: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    rest = [tmp_path / "new.csv"] if command == "predict" else []
    assert "not a saved model" in refused(command, tmp_path, *rest)
    assert "no such folder" in refused(command, tmp_path / "none", *rest)
    newer = _folder(tmp_path / "newer")
    for file in model.iterdir():
        (newer / file.name).write_bytes(file.read_bytes())
    record = json.loads((newer / "model.json").read_text())
    record["version"] = 99
    (newer / "model.json").write_text(json.dumps(record))
    assert "version 99" in refused(command, newer, *rest)


def test_unexpected_failure_is_code_1(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")

    def fail(*_: object, **__: object) -> np.ndarray:
        raise RuntimeError("the sky fell")

    monkeypatch.setattr("rtgp._estimator.regressor.GPRegressor.predict", fail)
    said = refused("predict", model, tmp_path / "new.csv", "-o", tmp_path / "out.csv", code=1)
    assert "the sky fell" in said
    assert "--debug" in said
    assert names(tmp_path) == ["new.csv"]
    args = ["--debug", "predict", str(model), str(tmp_path / "new.csv")]
    assert "Traceback" in CliRunner().invoke(app, args).output


@pytest.mark.parametrize("command", ["info", "predict", "diagnose"])
def test_a_model_of_several_outputs_is_refused_in_a_sentence(command: str, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(30, 2))
    folder = tmp_path / "model"
    GPRegressor(random_state=0, steps=2).fit(X, np.column_stack([X[:, 0], X[:, 1]])).save(folder)
    table = tmp_path / "new.csv"
    table.write_text("x1,x2\n1,2\n")
    assert "has 2: use it from Python" in refused(command, folder, *([table] if command == "predict" else []))
