"""A report as text or as a file. What draws and fills the page is loaded on first use: it comes with an extra."""

from __future__ import annotations

from pathlib import Path

from rtgp._extras import needs
from rtgp._report.content import Report
from rtgp._storage import write_text


def render(report: Report) -> str:
    """The page as text."""
    with needs("report", "A report"):
        from rtgp._report.page import render as made
    return made(report)


def write_report(path: str | Path, report: Report) -> Path:
    """Write the page as `path`; it appears there whole or not at all."""
    path, text = Path(path), render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path
