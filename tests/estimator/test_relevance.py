"""What an input contributes: Sobol's total index, 0 for one that does nothing, whatever the kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from rtgp._cli import app
from rtgp._estimator.regressor import GPRegressor
from rtgp._estimator.relevance import NO_EFFECT, RelevanceSettings, relevances, without_effect


def test_the_index_of_a_known_function() -> None:
    """f = x1 + 2 x2 x3 with independent normal inputs: total indices 1/5, 4/5 and 4/5. 4000 rows: five standard
    errors are about 0.1, a false alarm in a million."""
    x = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = RelevanceSettings(rows=4000, predictions=10**6)
    found = relevances(lambda z: z[:, 0] + 2 * z[:, 1] * z[:, 2], x, 0.0, ["a", "b", "c", "d"], 0, settings)
    for name, wanted in {"a": 0.2, "b": 0.8, "c": 0.8}.items():
        assert found[name] == pytest.approx(wanted, abs=0.1)
    assert found["d"] == 0.0


@pytest.mark.parametrize(
    "settings", [{}, {"method": "svgp", "steps": 60}, {"method": "poe"}, {"kernel": "rbf + linear"}]
)
def test_of_a_regressor(settings: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(150, 3)), columns=["much", "little", "nothing"]).assign(same=1.0)
    y = 3 * np.sin(X["much"]) + 0.5 * X["little"] + 0.05 * rng.normal(size=150)
    with pytest.warns(UserWarning, match="constant: 'same'"):
        gp = GPRegressor(random_state=0, **settings).fit(X, y)
    found = gp.relevance_
    assert list(found) == list(X.columns)
    assert found["much"] > 0.7
    assert 0.01 < found["little"] < 0.2
    assert found["nothing"] < 0.01
    assert found["same"] == 0.0
    assert gp.relevance_ is found


def test_names_that_have_no_effect() -> None:
    relevance = {"a": 1e-5, "b": 0.5, "c[0]": 0.0}
    assert without_effect("lengthscale[a]", relevance)
    assert without_effect("rbf(a).lengthscale[a]", relevance)
    assert without_effect("lengthscale[c[0]]", relevance)
    for name in ("lengthscale[b]", "lengthscale[z]", "noise", "period_length[a]", "a", "lengthscale"):
        assert not without_effect(name, relevance)


def test_words_in_place_of_a_number_without_meaning(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 2)), columns=["a", "idle"])
    frame.assign(y=np.sin(frame["a"])).to_csv(tmp_path / "data.csv", index=False)
    for command in (["fit", tmp_path / "data.csv", "-o", tmp_path / "m"], ["info", tmp_path / "m"]):
        output = CliRunner().invoke(app, list(map(str, command))).output
        (line,) = [line for line in output.splitlines() if line.startswith("lengthscale[idle]")]
        assert line.endswith(NO_EFFECT)
        assert sum(NO_EFFECT in line for line in output.splitlines()) == 1


def test_every_account_says_so_in_the_same_words(tmp_path) -> None:
    """Of an input that has none: the summary, the report and, once it is known, the picture in a notebook."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    gp = GPRegressor(random_state=0).fit(X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 2] + 0.1 * rng.normal(size=120))
    idle = next(name for name, value in dict(gp.summary().rows).items() if value == NO_EFFECT)
    assert idle == "lengthscale[1]"
    assert f">{NO_EFFECT}</td>" in gp._repr_html_()
    assert NO_EFFECT in gp.report(tmp_path / "page.html").read_text(encoding="utf-8")
