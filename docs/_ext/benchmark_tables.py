"""Tables made from the rows in benchmarks/results when the pages are built: no figure is copied by hand.

    ```{benchmark} time_to_optimum
    :columns: set, n, method, seconds_to_optimum
    :names: seconds to the optimum = seconds_to_optimum
    :where: hardware = NVIDIA *; failure =
    :latest: set, method
    :sort: set, n
    ```

where: rows in which every named column fits its pattern, or one of several with | between. latest: of the rows that
agree in these columns the last one, since rows are appended and never overwritten. `{benchmark-files}` lists all files.
"""

from __future__ import annotations

import csv
import fnmatch
import math
import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
Row = dict[str, str]


def read_rows(name: str, where: dict[str, str], latest: list[str]) -> list[Row]:
    """Rows of results/NAME.csv that fit, in the order of the file."""
    path = RESULTS / f"{name}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    unknown = (set(where) | set(latest)) - set(rows[0])
    if unknown:
        raise ValueError(f"{path.name} has no column {', '.join(sorted(unknown))}. Its columns: {', '.join(rows[0])}.")
    kept = [row for row in rows if all(fits(row[column], patterns) for column, patterns in where.items())]
    if latest:
        last = {tuple(row[column] for column in latest): row for row in kept}
        kept = [row for row in kept if last[tuple(row[column] for column in latest)] is row]
    return kept


def fits(value: str, patterns: str) -> bool:
    """Whether it matches one of the patterns between |, in which * stands for anything."""
    return any(fnmatch.fnmatchcase(value, pattern.strip()) for pattern in patterns.split("|"))


def pairs(text: str, separator: str = ",") -> dict[str, str]:
    """`a = x, b = y` as a dictionary."""
    found = (part.partition("=") for part in text.split(separator) if part.strip())
    return {key.strip(): value.strip() for key, _, value in found}


def listed(text: str) -> list[str]:
    """`a, b` as a list."""
    return [one.strip() for one in text.split(",") if one.strip()]


def value_of(text: str) -> tuple[float, str]:
    """What a cell is sorted by: numbers by their size, before words."""
    try:
        return float(text), ""
    except ValueError:
        return math.inf, text


def number(text: str) -> str:
    """Thousands apart, no exponent in a small number, no nan, few digits; all else as it stands in the file."""
    if text == "nan":
        return "never"
    if text.isdigit():
        return f"{int(text):,}" if len(text) > 4 else text
    if re.fullmatch(r"-?\d+\.\d{7,}", text):
        text = f"{float(text):.4g}"
    small = re.fullmatch(r"-?\de-0([1-5])", text)
    return f"{float(text):.{small[1]}f}" if small else text


class Benchmark(SphinxDirective):
    """The directive."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "columns": directives.unchanged_required,
        "names": directives.unchanged,
        "where": directives.unchanged,
        "latest": directives.unchanged,
        "sort": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.env.note_dependency(str(RESULTS / f"{name}.csv"))
        where = pairs(self.options.get("where", ""), ";")  # a machine's name has commas
        try:
            rows = read_rows(name, where, listed(self.options.get("latest", "")))
        except (OSError, ValueError) as error:
            raise self.error(str(error)) from error
        columns = listed(self.options["columns"])
        if not rows or set(columns) - set(rows[0]):
            raise self.error(f"{name}.csv: {len(rows)} rows fit; columns asked for: {', '.join(columns)}.")
        keys = listed(self.options.get("sort", ""))
        rows = sorted(rows, key=lambda row: [value_of(row[column]) for column in keys])
        words = {column: title for title, column in pairs(self.options.get("names", "")).items()}
        head = [words.get(column, column.replace("_", " ")) for column in columns]
        made = make_table(head, [[number(row[column]) for column in columns] for row in rows])
        return [made, self._source(name, rows)]

    def _source(self, name: str, rows: list[Row]) -> nodes.paragraph:
        dates, machines = sorted({row["date"] for row in rows}), sorted({row["hardware"] for row in rows})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        words = f"{len(rows)} rows of benchmarks/results/{name}.csv, {when}; {'; '.join(machines)}."
        return nodes.paragraph("", "", nodes.emphasis("", words))


class Files(SphinxDirective):
    """All files of results: how many rows, up to when."""

    def run(self) -> list[nodes.Node]:
        found = []
        for path in sorted(RESULTS.glob("*.csv")):
            self.env.note_dependency(str(path))
            rows = read_rows(path.stem, {}, [])
            script = f"benchmarks/bench_{path.stem}.py"
            made_by = script if (RESULTS.parents[1] / script).is_file() else ""
            found.append([f"{path.stem}.csv", str(len(rows)), max(row["date"] for row in rows), made_by])
        return [make_table(["file", "rows", "latest", "made by"], found)]


def make_table(head: list[str], rows: list[list[str]]) -> nodes.table:
    """A docutils table of plain text."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(row) for row in rows))
    return nodes.table("", group, classes=["colwidths-auto"])


def _row(cells: list[str]) -> nodes.row:
    """Numbers stand at the right of their cells."""
    marks = [["number"] if math.isfinite(value_of(cell.replace(",", ""))[0]) else [] for cell in cells]
    return nodes.row(
        "", *(nodes.entry("", nodes.paragraph("", cell), classes=mark) for cell, mark in zip(cells, marks, strict=True))
    )


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("benchmark", Benchmark)
    app.add_directive("benchmark-files", Files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
