"""The commands with every method: one table, one report, saved models that predict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cli.test_cli import run, table
from rtgp._estimator.regressor import GPRegressor

NINE = ("cholesky", "cg", "rr-cg", "rff", "ss-rff", "svgp", "poe", "sggp", "vecchia")


def test_compare_all_nine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, report = table(tmp_path / "data.csv"), tmp_path / "r.html"
    names = ",".join(NINE)
    output = run("compare", data, "-t", "price", "--methods", names, "--steps", 5, "--report", report)
    rows = {line.split()[0]: line for line in output.splitlines() if line.strip() and line.split()[0] in NINE}
    assert list(rows) == list(NINE), output
    assert [name for name, line in rows.items() if "†" in line] == ["svgp"]
    assert [name for name, line in rows.items() if "‡" in line] == ["poe"]
    assert not [name for name, line in rows.items() if "*" in line]  # few rows: computed exactly
    assert "† A lower bound of the log marginal likelihood" in output
    assert "‡ The mean over POE's experts" in output
    page = report.read_text(encoding="utf-8")
    for word in (*NINE, "A lower bound of the log marginal likelihood", "inducing points", "experts of"):
        assert word in page, word
    monkeypatch.setattr("rtgp._cli.scoring.EXACT_UP_TO", 10)
    output = run("compare", data, "-t", "price", "--methods", "rff,rr-cg,sggp,vecchia", "--steps", 3)
    assert [line.split()[0] for line in output.splitlines() if " *" in line] == ["rff", "sggp", "vecchia"]
    assert "* Biased: RFF's own estimate" in output
    assert "* Biased: sgGP's own estimate" in output


@pytest.mark.parametrize(
    "method, words",
    [
        ("svgp", "a lower bound"),
        ("poe", "of experts, each on its own rows"),
        ("sggp", "biased: sgGP's"),
        ("vecchia", "biased: Vecchia's"),
    ],
)
def test_fit_info_predict(method: str, words: str, tmp_path: Path) -> None:
    data, model, report = table(tmp_path / "data.csv"), tmp_path / "m", tmp_path / "r.html"
    output = run("fit", data, "-t", "price", "-o", model, "--method", method, "--steps", 6, "--report", report)
    assert words in output
    assert "nan" not in output
    assert ("leave-one-out" in output) == (method in ("sggp", "vecchia"))
    page = report.read_text(encoding="utf-8")
    assert 'id="training"' in page
    assert "nan" not in page.lower().split()
    described = run("info", model)
    for word in (words, {"vecchia": "Vecchia"}.get(method, method.upper()), "lengthscale[", "price"):
        assert word in described
    predicted = tmp_path / "p.csv"
    run("predict", model, data, "-o", predicted, "--std")
    frame = pd.read_csv(predicted)
    expected = GPRegressor.load(model).predict(pd.read_csv(data)[["a", "b"]], return_std=True)
    assert np.array_equal(frame["mean"], expected[0])
    assert np.array_equal(frame["std"], expected[1])


def test_a_checkpoint_is_refused_in_words(tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv")
    args = ["fit", data, "-t", "price", "-o", tmp_path / "m", "--method", "svgp", "--checkpoint", tmp_path / "c"]
    assert "SVGP cannot be checkpointed" in run(*args, code=2)
