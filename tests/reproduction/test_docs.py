"""The documentation is what the committed rows say, word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reproduction import ITEMS
from reproduction.docs import document
from reproduction.published import best_rmse, published
from reproduction.rows import Results

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "reproduction"


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")


def test_the_page_is_made_from_the_rows(page):
    assert page == document(FOLDER), "run: rtgp reproduce docs > docs/reproduction.md"


def test_its_figures_are_there_and_small(page):
    linked = re.findall(r"\]\(\.\./(reproduction/figures/[^)]*)\)", page)
    assert linked
    for name in linked:
        assert (ROOT / name).stat().st_size < 100_000, name


def test_missing_rows_make_it_incomplete(tmp_path):
    text = document(tmp_path)
    assert text.count("**incomplete** |") == len(ITEMS)
    assert "none yet" in text


def test_rows_tell_where_they_come_from():
    files = list((FOLDER / "results").glob("*.csv"))
    assert files
    for path in files:
        for row in Results(path).read():
            assert {"cell", "date", "hardware", "torch", "rtgp"} <= set(row)
            assert "/" not in str(row["hardware"])


def test_published_figures():
    """Spot checks against the printed tables."""
    assert (published("bike", "rr-cg", "rmse").mean, published("bike", "rr-cg", "rmse").error) == (0.035, 0.002)
    assert published("kin40k", "svgp", "nll").mean == -0.410
    assert published("keggdirected", "cg", "nll").error == 0.653
    assert published("3droad", "rr-cg", "minutes").mean == 158.657
    assert published("kin40k", "cholesky", "rmse") is None
    assert best_rmse("kin40k")[0] == "sggp"  # RFF's split was another
