"""The commands from end to end on small tables, through Typer's runner and once as a real process."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from rtgp._cli import app, demo, main, scoring
from rtgp._estimator.regressor import GPRegressor
from rtgp._report import Run
from rtgp.errors import InputError
from rtgp.training._session import Session
from waiting import PATIENCE

N = 60


def table(path: Path, rows: int = N, header: bool = True, target: bool = True) -> Path:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(rows, 2))
    y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=rows)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "price": y} if target else {"a": X[:, 0], "b": X[:, 1]})
    frame.to_csv(path, index=False, header=header)
    return path


def run(*args: object, code: int = 0) -> str:
    """All output of a command that ends with `code`; an unexpected exception is never hidden."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    run("fit", table(folder / "data.csv"), "--target", "price", "-o", folder / "model", "--steps", 5)
    return folder / "model"


def test_fit_and_report(tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv")
    output = run(
        "fit", data, "-t", "price", "-o", tmp_path / "m", "--steps", 5, "--report", tmp_path / "r.html"
    )  # fmt: skip
    assert "log marginal likelihood" in output
    assert "leave-one-out" in output
    assert 'id="posterior"' in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "m" / "fit.json").read_text())["target"] == "price"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data.csv", "m", "r.html"]


def test_fit_holds_rows_out_and_does_not_overwrite_unasked(tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv")
    args = ["fit", data, "--target", "price", "-o", tmp_path / "m", "--steps", 3]
    assert "held-out" in run(*args, "--holdout", 0.2)
    assert "--overwrite" in run(*args, code=2)
    run(*args, "--overwrite")


@pytest.mark.parametrize("method", ["rr-cg", "cholesky"])
def test_an_interrupted_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    data, state = table(tmp_path / "data.csv"), tmp_path / "state"
    args = ["fit", data, "-t", "price", "--method", method, "--steps", 16, "--holdout", 0.2]
    run(*args, "-o", tmp_path / "whole")
    record, seen = Session.record, []

    def interrupted(self: Session, row: dict, steps: int) -> bool:
        seen.append(row["step"])
        if row["step"] == 13:
            raise KeyboardInterrupt
        return record(self, row, steps)

    again = [*args, "-o", tmp_path / "again", "--checkpoint", state]
    with monkeypatch.context() as patched:
        patched.setattr(Session, "record", interrupted)
        CliRunner().invoke(app, [str(arg) for arg in again])
    assert seen[-1] == 13
    assert not (tmp_path / "again").exists()
    seen.clear()
    monkeypatch.setattr(Session, "record", lambda *given: seen.append(given[1]["step"]) or record(*given))
    run(*again)
    assert seen[0] == 13  # an interruption leaves a checkpoint of the last complete step
    whole, resumed = (GPRegressor.load(tmp_path / name) for name in ("whole", "again"))
    assert resumed.hyperparameters_ == whole.hyperparameters_
    assert resumed.log_marginal_likelihood_value_ == whole.log_marginal_likelihood_value_


def test_predict(model: Path, tmp_path: Path) -> None:
    new, out = table(tmp_path / "new.csv", 7, target=False), tmp_path / "out.csv"
    run("predict", model, new, "--output", out, "--std", "--interval", 0.9)
    found = pd.read_csv(out)
    assert list(found.columns) == ["mean", "std", "lower", "upper"]
    assert len(found) == 7
    np.testing.assert_allclose(found["upper"] - found["mean"], 1.6448536 * found["std"], rtol=1e-6)
    run("predict", model, new, "--output", tmp_path / "latent.csv", "--std", "--latent")
    assert (pd.read_csv(tmp_path / "latent.csv")["std"] < found["std"]).all()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latent.csv", "new.csv", "out.csv"]


def test_predict_takes_columns_by_name_and_leaves_others_out(model: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table(tmp_path / "new.csv", 5))
    frame.to_csv(tmp_path / "other.csv", index=False, columns=["price", "b", "a"])
    plain = run("predict", model, table(tmp_path / "plain.csv", 5))
    assert run("predict", model, tmp_path / "other.csv") == plain
    frame[["a", "b"]].to_csv(tmp_path / "unnamed.csv", index=False, header=False)
    assert run("predict", model, tmp_path / "unnamed.csv") == plain


def test_a_table_without_header(tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", header=False)
    run("fit", data, "--target", 3, "-o", tmp_path / "m", "--steps", 3)
    new = table(tmp_path / "new.csv", 4, header=False, target=False)
    assert run("predict", tmp_path / "m", new).count("\n") == 5


def test_info(model: Path) -> None:
    output = run("info", model)
    for word in ("price", "a, b", "Cholesky", "lengthscale[a]", "noise"):
        assert word in output


def test_compare(tmp_path: Path) -> None:
    data, report = table(tmp_path / "data.csv"), tmp_path / "r.html"
    output = run("compare", data, "--target", "price", "--steps", 4, "--report", report)
    lines = [line.split() for line in output.splitlines()]
    for method in ("cholesky", "cg", "rr-cg"):
        assert any(line[:1] == [method] and len(line) == 8 for line in lines), output
    assert report.is_file()
    assert "*" not in output
    assert "twice" in run("compare", data, "--target", "price", "--methods", "cg,cg", code=2)


def test_compare_marks_the_biased_likelihood_of_cg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the size up to which the exact value is computed, CG's number is its own estimate."""
    monkeypatch.setattr("rtgp._cli.scoring.EXACT_UP_TO", 10)
    data, report = table(tmp_path / "data.csv"), tmp_path / "r.html"
    output = run("compare", data, "--target", "price", "--steps", 4, "--report", report)
    marked = [line.split()[0] for line in output.splitlines() if " *" in line]
    assert marked == ["cg"]
    assert sum(line.startswith("* Biased: plain CG") for line in output.splitlines()) == 1
    assert "* Biased: plain CG" in report.read_text(encoding="utf-8")
    fitted = run("fit", data, "-t", "price", "-o", tmp_path / "m", "--method", "cg", "--steps", 3)
    assert "biased: plain CG's own estimate" in fitted


def test_same_seed_same_table(tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv")
    args = ["compare", data, "--target", "price", "--methods", "rr-cg", "--steps", 3, "--seed", 4]
    rows = [next(line.split() for line in run(*args).splitlines() if " rr-cg " in line) for _ in range(2)]
    assert rows[0][:5] == rows[1][:5]


def test_idle_columns_are_named_in_a_warning(tmp_path: Path) -> None:
    frame = pd.read_csv(table(tmp_path / "data.csv"))
    frame.insert(0, "same", 1.0)
    frame.insert(0, "copy", frame["a"])
    frame.to_csv(tmp_path / "data.csv", index=False)
    output = run("fit", tmp_path / "data.csv", "--target", "price", "-o", tmp_path / "m", "--steps", 3)
    assert "rtgp: warning:" in output
    assert "'same'" in output
    assert "'a' (= 'copy')" in output


def test_help_has_examples() -> None:
    assert "rtgp demo" in run("--help")
    for command in ("demo", "fit", "predict", "compare", "info"):
        assert f"rtgp {command}" in run(command, "--help")
    assert run("--version").startswith("rtgp ")


@pytest.mark.slow
def test_demo_makes_its_point(tmp_path: Path) -> None:
    """Plain CG's lengthscales are off and RR-CG ends where Cholesky does; twice in one process."""
    for folder in ("once", "twice"):
        output = run("demo", "--output", tmp_path / folder, "--points", 2000, "--no-all")
        lines = output.splitlines()
        rows = {name: next(x.split() for x in lines if x.split()[:1] == [name]) for name in demo.METHODS}
        for row in (rows["Cholesky"], rows["RR-CG"]):
            assert 0.85 <= float(row[6].rstrip("%")) / 100 <= 0.95
        scales = {name: np.array([float(row[1]), float(row[3])]) for name, row in rows.items()}
        np.testing.assert_allclose(scales["RR-CG"], scales["Cholesky"], rtol=0.1)
        assert (scales["CG(20)"] > 1.5 * scales["Cholesky"]).any()
        assert abs(float(rows["RR-CG"][4]) - float(rows["Cholesky"][4])) < 0.002
        assert "Look at the lengthscales: those of CG(20) are up to" in output
        assert [entry.name for entry in (tmp_path / folder).iterdir()] == ["report.html"]


def test_small_demo(tmp_path: Path) -> None:
    output = run("demo", "--output", tmp_path / "out", "--points", 100, "--steps", 3, "--no-all")
    assert "Look at the lengthscales" in output
    assert "extrapolated" not in output
    assert 'id="posterior"' in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_what_the_demo_says_comes_from_its_figures() -> None:
    def line(name: str, rows: int, scales: tuple[float, ...], likelihood: float, seconds: float) -> demo.Trained:
        return demo.Trained(name, rows, None, Run(name), scales, likelihood, seconds, [])

    exact = line("Cholesky", 1000, (2.0, 1.0), 0.5, 8.0)
    said = demo.look_at(
        [exact, line("CG(20)", 1000, (1.0, 1.0), 0.1, 1.0), line("RR-CG", 1000, (2.0, 1.0), 0.4995, 2.0)]
    )
    assert "up to 2.0 times off" in said
    assert "within 0.001 of its log likelihood per airport, 4.0 times as fast" in said
    said = demo.look_at([exact, line("RR-CG", 1000, (2.0, 1.0), 0.4, 16.0), line("RR-CG, 9,000", 9000, (), 0.0, 3.0)])
    assert "0.1000 below its log likelihood per airport, in 2.0 times its time" in said
    assert "about 5,800 s (extrapolated by n^3, not run)" in said
    assert "Cholesky" not in demo.look_at([line("RR-CG", 1000, (2.0, 1.0), 0.4, 16.0)])


@pytest.mark.slow
def test_as_a_process(model: Path, tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", 3)
    command = [sys.executable, "-m", "rtgp"]
    done = subprocess.run(
        [*command, "predict", model, new], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 4
    refused = [*command, "predict", tmp_path / "none", new]
    done = subprocess.run(refused, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("rtgp: error: ")
    assert done.stderr.count("\n") == 1
    done = subprocess.run([*refused, "--debug"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_report_that_fails_leaves_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of it fails: training took the time, and its result is kept before anything else is made."""

    def fail(*_: object, **__: object) -> None:
        raise TypeError("no such ink")

    data = table(tmp_path / "data.csv")
    for i, what in enumerate(("leave_one_out", "report_of", "write_report")):
        model, report = tmp_path / f"m{i}", tmp_path / f"r{i}.html"
        with monkeypatch.context() as patched:
            patched.setattr(f"rtgp._cli.fit.{what}", fail)
            output = run("fit", data, "-t", "price", "-o", model, "--steps", 2, "--report", report, code=1)
        (said,) = [line for line in output.splitlines() if "error" in line]
        assert f"The model was saved to '{model}', but its report '{report}' could not be made: " in said
        assert "no such ink" in said
        assert "log marginal likelihood" in output
        assert not report.exists()
        assert "price" in run("info", model)
    with monkeypatch.context() as patched:
        patched.setattr(GPRegressor, "predict", fail)
        output = run("fit", data, "-t", "price", "-o", tmp_path / "m", "--steps", 2, "--holdout", 0.2, code=1)
    assert f"The model was saved to '{tmp_path / 'm'}', but the predictions of the held-out rows" in output
    assert GPRegressor.load(tmp_path / "m").n_features_in_ == 2


def test_a_report_on_a_full_disk_is_no_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("rtgp._storage.write_whole", full)
    monkeypatch.setattr("rtgp._cli.fit.write_fit_record", lambda *_: None)
    data = table(tmp_path / "data.csv")
    output = run(
        "fit", data, "-t", "price", "-o", tmp_path / "m", "--steps", 2, "--report", tmp_path / "r.html", code=1
    )  # fmt: skip
    assert "The model was saved to" in output
    assert "no space left on the disk" in output
    assert GPRegressor.load(tmp_path / "m").n_features_in_ == 2


def test_methods_that_have_finished_are_shown_where_a_later_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = scoring.score

    def score(method: str, *args: object) -> scoring.Score:
        if method == "cg":
            raise InputError("cg does not like this table")
        return known(method, *args)

    monkeypatch.setattr("rtgp._cli.compare.score", score)
    data = table(tmp_path / "data.csv")
    asked = ("compare", data, "-t", "price", "--steps", 2)
    output = run(*asked, "--methods", "cholesky,cg,rr-cg", "--report", tmp_path / "r.html", code=2)
    assert "cholesky" in output
    assert "cg failed: the table has the 1 method(s) before it." in output
    assert output.rstrip().endswith("rtgp: error: cg does not like this table")
    assert "cholesky" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "the table" not in run(*asked, "--methods", "cg", code=2)


def test_a_table_is_not_lost_to_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("no such ink")

    monkeypatch.setattr("rtgp._cli.compare.picture_of", fail)
    data, report = table(tmp_path / "data.csv"), tmp_path / "r.html"
    output = run(
        "compare", data, "-t", "price", "--steps", 2, "--methods", "cholesky", "--report", report, code=1
    )  # fmt: skip
    assert f"The table above is complete, but the report '{report}' could not be made: " in output


def test_a_stream_that_knows_ascii_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"größe": rng.uniform(size=20), "☃ [/b]": rng.uniform(size=20)})
    frame.to_csv(tmp_path / "data.csv", index=False)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    command = ["compare", str(tmp_path / "data.csv"), "--methods", "cholesky", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", ["rtgp", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert r"\u2603 [/b] of data" in written.getvalue().decode("ascii")
