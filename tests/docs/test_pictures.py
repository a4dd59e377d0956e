"""The pictures are small, whole, and those of the rows beside them; the figures that README quotes are too."""

from __future__ import annotations

import io
import re
import statistics
from types import ModuleType
from xml.etree import ElementTree

import budget
import loop
import matplotlib
import optimum
import pytest
from themes import THEMES

from docs.pages import DOCS, ROOT

PICTURES = DOCS / "pictures"


@pytest.mark.parametrize("path", sorted([*PICTURES.glob("*.svg"), *PICTURES.glob("*.png")]), ids=lambda path: path.name)
def test_small(path) -> None:
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("picture", [optimum, budget, loop], ids=["optimum", "budget", "loop"])
def test_drawn_from_the_rows(picture: ModuleType, theme: str) -> None:
    buffer = io.StringIO()
    with matplotlib.rc_context(picture.SETTINGS):
        picture.draw(picture.read(), theme).savefig(buffer, format="svg", metadata=picture.NO_METADATA)
    committed = (PICTURES / f"{picture.__name__}-{theme}.svg").read_text(encoding="utf-8")
    assert committed == buffer.getvalue(), f"run: python docs/pictures/{picture.__name__}.py"
    assert not [one for one in ElementTree.fromstring(committed).iter() if one.tag.endswith(("script", "image"))]


def off_by(method: str) -> list[float]:
    """How far the mean of a method's estimates is from the exact curve, in standard errors."""
    rows = optimum.read()
    exact = optimum.values(rows, "exact", "curve", "log_likelihood_per_point")
    seen, errors = (
        optimum.values(rows, method, "curve", name) for name in ("log_likelihood_per_point", "standard_error")
    )
    return [abs(one - truth) / error for truth, one, error in zip(exact, seen, errors, strict=True)]


def test_what_the_picture_claims() -> None:
    """RR-CG sees the exact curve and ends at its top; CG does neither."""
    assert max(off_by("RR-CG")) < 4.0  # 25 comparisons: false alarm, one such picture in 600
    assert statistics.median(off_by(optimum.CG)) > 10.0
    exact, cg, rr = (optimum.values(optimum.read(), name, "end", "lengthscale") for name in optimum.METHODS)
    assert abs(statistics.fmean(rr) / exact[0] - 1) < 0.02
    assert abs(statistics.fmean(cg) / exact[0] - 1) > 0.1


def test_the_figures_that_readme_quotes() -> None:
    rows = optimum.read()
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for method, name in (("exact", "Cholesky"), (optimum.CG, optimum.CG), ("RR-CG", "RR-CG")):
        end = statistics.fmean(optimum.values(rows, method, "end", "lengthscale"))
        assert re.search(rf"{re.escape(name)} ends at {end:.2f}°", text), f"{name} {end:.2f}"
