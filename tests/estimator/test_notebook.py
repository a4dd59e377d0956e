"""What a fitted regressor shows: its summary, its pictures, its page, and itself in a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import sklearn
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import rtgp
from rtgp._estimator import pages
from rtgp._report.grids import relevance_of
from rtgp._report.style import MARKERS
from rtgp.errors import InputError, SettingError


def fitted(d: int, n: int = 60, **settings: Any) -> tuple[rtgp.GPRegressor, pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(n, d)), columns=[f"input {j}" for j in range(d)])
    y = 5.0 + np.sin(5.0 * X["input 0"].to_numpy()) + 0.1 * rng.normal(size=n)
    return rtgp.GPRegressor(random_state=0, **settings).fit(X, y), X, y


@pytest.fixture(scope="module", params=[1, 2, 4])
def fit(request: pytest.FixtureRequest) -> tuple[rtgp.GPRegressor, pd.DataFrame, np.ndarray]:
    return fitted(request.param)


def test_training_data_come_back(fit: Any) -> None:
    gp, X, y = fit
    trained = pages.trained_on(gp)
    np.testing.assert_allclose(trained.X, X.to_numpy(), atol=1e-6)
    np.testing.assert_allclose(trained.y, y, rtol=1e-6)
    assert trained.used == trained.names == tuple(X.columns)


def test_idle_columns_are_in_no_picture() -> None:
    _, X, y = fitted(2)
    X["same"] = 3.0
    with pytest.warns(UserWarning, match="'same'"):
        gp = rtgp.GPRegressor(random_state=0).fit(X, y)
    shown = pages.slices(gp, "y")
    assert set(shown.relevance) == {"input 0", "input 1"}
    unnamed = rtgp.GPRegressor(random_state=0).fit(X[["input 0", "input 1"]].to_numpy(), y)
    assert set(pages.slices(unnamed, "y").relevance) == {"x1", "x2"}


def test_summary(fit: Any) -> None:
    gp, X, y = fit
    names = [name for name, _ in gp.summary().rows]
    assert {"RMSE, leave-one-out", "90% coverage, leave-one-out", "log marginal likelihood", "noise"} <= set(names)
    held_out = dict(gp.summary(X, y).rows)
    mean = gp.predict(X)
    assert float(held_out["RMSE, held-out"].split()[0]) == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)), rel=1e-3)
    assert str(gp.summary()) == repr(gp.summary())
    with pytest.raises(InputError, match="both X and y"):
        gp.summary(X)


def test_pictures(fit: Any) -> None:
    gp, X, _ = fit
    before = dict(matplotlib.rcParams)
    for kind in ("auto", "slices", "calibration", "relevance"):
        drawn = gp.plot(kind, target="price")
        assert isinstance(drawn, Figure)
        assert drawn._repr_png_().startswith(b"\x89PNG")
        placeholders = {MARKERS.ink, MARKERS.muted, MARKERS.grid, *MARKERS.series}
        used = {to_hex(line.get_color()) for line in drawn.findobj(matplotlib.lines.Line2D)}
        assert not used & placeholders  # such colours are for the page alone
    axes = [len(part.axes) for part in gp.plot().subfigs]
    assert axes == {1: [1], 2: [2, 2], 4: [1, 1, 1, 1, 0, 0]}[X.shape[1]]  # a map has a colour bar
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(SettingError, match="'relevance'"):
        gp.plot("colourful")


def test_report(fit: Any, tmp_path: Path) -> None:
    gp, X, y = fit
    page = gp.report(tmp_path / "new" / "r.html", X, y, title="Houses", target="price").read_text(encoding="utf-8")
    assert page.index('id="summary"') < page.index("What to do next") < page.index('id="posterior"')
    assert "RMSE, held-out" in page
    assert "price" in page
    assert ('id="relevance"' in page) == (X.shape[1] == 4)
    assert "roulette" not in page.lower()  # Cholesky draws no truncations
    assert "as each method saw it" not in page


def test_relevance_against_its_definition() -> None:
    """A linear function of independent inputs: the change is |slope| sqrt(2) sd of the input."""
    X = np.random.default_rng(0).normal(size=(4000, 3))
    slopes = np.array([0.0, 3.0, 1.0])
    found = relevance_of(lambda frame: frame.to_numpy() @ slopes, X, 2.0, "abc")
    assert list(found) == ["b", "c", "a"]
    for name, slope in zip("abc", slopes, strict=True):
        assert found[name] == pytest.approx(slope * np.sqrt(2.0) / 2.0, rel=0.1)


@pytest.mark.parametrize("method", ["svgp", "poe"])
def test_models_that_are_no_exact_process(method: str) -> None:
    gp, X, y = fitted(3, method=method, steps=3)
    assert isinstance(gp.plot(), Figure)
    assert "RMSE, held-out" in dict(gp.summary(X, y).rows)
    assert "hold rows out" in str(gp.summary())
    with pytest.raises(InputError, match="X_test"):
        gp.plot("calibration")


def test_in_a_notebook(fit: Any) -> None:
    gp, _, _ = fit
    shown = gp._repr_mimebundle_()["text/html"]
    assert "log marginal likelihood" in shown
    assert gp._repr_html_() == shown or "log marginal likelihood" in gp._repr_html_()
    assert "log marginal likelihood" not in rtgp.GPRegressor()._repr_mimebundle_()["text/html"]
    with sklearn.config_context(display="text"):
        assert list(gp._repr_mimebundle_()) == ["text/plain"]
    for one in (gp.fit_result_, gp.history_, gp._posterior(), gp.summary()):
        assert "<table>" in one._repr_html_()


def test_without_matplotlib(tmp_path: Path) -> None:
    """In a process of its own: a module that is None in sys.modules cannot be imported."""
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import numpy as np, rtgp\n"
        "X = np.linspace(0.0, 6.0, 40)[:, None]\n"
        "gp = rtgp.GPRegressor(random_state=0).fit(X, np.sin(X[:, 0]))\n"
        "gp.summary()\n"
        "for call in (gp.plot, lambda: gp.report('r.html')):\n"
        "    try: call()\n"
        "    except rtgp.errors.NotInstalledError as error: print(error)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("needs the package matplotlib" in line and "rtgp[report]" in line for line in lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("outputs", ["independent", "shared"])
def test_several_outputs_are_shown_one_by_one(outputs: str) -> None:
    _, X, y = fitted(1, n=30)
    gp = rtgp.GPRegressor(random_state=0, outputs=outputs).fit(X, np.column_stack([y, -y]))
    for call in (gp.summary, gp.plot, lambda: gp.report("r.html")):
        with pytest.raises(InputError, match="2 outputs"):
            call()
    assert "log marginal likelihood" not in gp._repr_mimebundle_()["text/html"]
