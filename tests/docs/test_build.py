"""`make docs` builds without a warning, and what it builds holds every public name, formula and table."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from pathlib import Path

import public_names

from docs.pages import DOCS
from waiting import PATIENCE


def test_the_site(tmp_path: Path) -> None:
    """One test, since a build takes ten seconds and every worker of pytest would make its own."""
    site = build(tmp_path)
    assert names_not_in(site / "objects.inv") == []
    check_contents(site)
    for page in site.rglob("*.html"):
        assert fetched_from_elsewhere(page) == [], page.name


def build(target: Path) -> Path:
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-q", "-E", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(target / "doctrees"), str(DOCS), str(target / "html")],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target / "html"


def names_not_in(inventory: Path) -> list[str]:
    """Public names without an entry in the index that Sphinx writes."""
    content = inventory.read_bytes()
    lines = zlib.decompress(content[content.index(b"zlib.\n") + 6 :]).decode().splitlines()
    known = {line.split()[0] for line in lines}
    return [one.full for names in public_names.public_names().values() for one in names if one.full not in known]


def check_contents(site: Path) -> None:
    """Formulas, tables and pictures are there."""
    roulette, fourier, benchmarks, index, design = (
        (site / f"{page}.html").read_text(encoding="utf-8")
        for page in ("theory/roulette", "theory/fourier", "benchmarks", "index", "design")
    )
    assert roulette.count("<math") > 50
    for page in (roulette, fourier):
        assert "\\frac" not in page
        assert not re.search(r"<munderover>\s*<mi>", page)  # an index below an accented letter
    assert "NVIDIA H200" in benchmarks
    assert index.count("optimum-") >= 2
    assert "Random truncation of a series" in design


def fetched_from_elsewhere(page: Path) -> list[str]:
    """What a reader without a network would miss."""
    text = page.read_text(encoding="utf-8")
    marks = ('src="http', "url(http", '<link rel="stylesheet" type="text/css" href="http', "@import")
    return [mark for mark in marks if mark in text]
