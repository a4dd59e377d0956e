"""A few hundred hostile files in a process of its own; and what the whole campaign found, as the docs tell it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fuzz import campaign

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs limits of Linux")
INPUTS = 500
TRUST = Path(__file__).parents[2] / "docs" / "trust.md"


def test_only_documented_errors(tmp_path: Path) -> None:
    """No crash, no hang, no other error, nothing run, no more than 2 GiB."""
    counts, _ = campaign.run_batch("mixed", 0, INPUTS, tmp_path)
    told = "\n".join(path.read_text() for path in tmp_path.iterdir())
    assert counts["read"] + counts["refused"] == INPUTS, f"{counts}\n{told}"
    assert counts["refused"] > INPUTS // 2
    assert counts["read"] > INPUTS // 100


@pytest.mark.slow
def test_the_harness_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: a target that crashes, hangs, takes memory, runs a program or raises something else is counted."""
    monkeypatch.setattr(campaign, "PATIENCE", 4.0)
    monkeypatch.setattr(campaign, "__file__", str(Path(__file__).with_name("broken_targets.py")))
    counts, _ = campaign.run_batch("broken", 0, 6, tmp_path)
    assert counts == {"crashed": 1, "hung": 1, "memory": 1, "undocumented": 2, "read": 1}


def test_the_campaign() -> None:
    rows = campaign.counted()
    assert sum(row["inputs"] for row in rows.values()) >= 100_000
    for row in rows.values():
        assert row["read"] + row["refused"] == row["inputs"]
        assert row["undocumented"] == row["memory"] == row["crashed"] == row["hung"] == 0
        assert row["peak_mib"] < 1024


def test_the_docs_tell_what_the_campaign_found() -> None:
    rows = campaign.counted()
    told = {
        name.strip(): [int(cell.replace(",", "")) for cell in cells.split("|")]
        for name, cells in re.findall(r"^\| `([a-z.]+)` \|((?:[ \d,]+\|){4}[ \d,]+)\|$", TRUST.read_text(), re.M)
    }
    failures = ("undocumented", "memory", "crashed", "hung")
    assert told == {
        target: [row["inputs"], row["read"], row["refused"], sum(row[name] for name in failures), row["peak_mib"]]
        for target, row in rows.items()
    }
