"""One self-contained page over all items, in the style of the fit reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from reproduction.spec import Row, Size, Spec, Verdict
from rtgp._report import Report, Table, versions
from rtgp._report.page import Drawing, Section
from rtgp._report.style import to_svg
from rtgp._storage import write_text

HEAD = ("item", "checks", "verdict")  # the claims are sentences, and stand with their items


@dataclass(frozen=True)
class Item:
    """One item as the page shows it."""

    line: tuple[str, ...]  # under HEAD
    section: Section

    @staticmethod
    def of(spec: Spec, verdict: Verdict, rows: Sequence[Row], drawn: Mapping[str, Figure]) -> Item:
        passed = sum(check.passed for check in verdict.checks)
        words = [f"Claim: {spec.claim}", f"Verdict: {verdict.status}. {verdict.words}"]
        words += [f"{'✓' if check.passed else '✗'} {check.name}: {check.words}" for check in verdict.checks]
        words += [f"Settings: {' '.join(spec.settings)}"]
        if spec.departures:
            words += [f"The authors' code: {' '.join(spec.departures)}"]
        if rows:
            words += [f"Computed on: {'; '.join(sorted({str(row['hardware']) for row in rows}))}."]
        drawings = tuple(Drawing(to_svg(figure, name, spec.title), "") for name, figure in drawn.items())
        title = f"{spec.title}: {verdict.status}"
        return Item(
            (spec.title, f"{passed} of {len(verdict.checks)}", verdict.status),
            Section(spec.name, title, tuple(words), drawings, "full"),
        )


def write_page(path: Path, items: Sequence[Item], size: Size, command: str) -> Path:
    """Write the page as `path`; it appears there whole or not at all."""
    environment = Environment(
        loader=PackageLoader("rtgp._report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    words = {
        "quick": "Quick versions: a few hundred points, the same claims.",
        "reduced": "Reduced sizes, for two processor cores.",
        "full": "The sizes of the paper.",
    }[size]
    report = Report(
        title="Bias-Free Scalable Gaussian Processes via Randomized Truncations, rerun",
        summary=f"Every figure, table and theorem of Potapczynski et al. (2021), item by item. {words}",
        runs=[],
        table=Table(HEAD, [item.line for item in items]),
        command=command,
    )
    text = environment.get_template("report.html.j2").render(
        report=report,
        sections=[item.section for item in items],
        runs=[],
        versions=versions(),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path
