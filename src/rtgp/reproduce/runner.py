"""Runs the cells of items that have no rows yet, and writes results, figures and the report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rtgp.reproduce.drawing import save
from rtgp.reproduce.page import Item, write_page
from rtgp.reproduce.rows import Results
from rtgp.reproduce.spec import Cell, CellUnfinishedError, Row, Setting, Size, Spec, Verdict, key_of


@dataclass(frozen=True)
class Outcome:
    """One item after a run."""

    spec: Spec
    verdict: Verdict
    rows: Sequence[Row]


def selected(cells: Sequence[Cell], only: Mapping[str, str]) -> list[Cell]:
    """The cells whose settings are among those asked for; `only` maps a name to values with commas between."""
    wanted = {name: values.split(",") for name, values in only.items()}
    return [cell for cell in cells if all(str(cell.get(name)) in values for name, values in wanted.items())]


def run_cells(
    spec: Spec,
    setting: Setting,
    folder: Path,
    only: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> None:
    """Run what is missing, in the spec's order, until the time is up. A kill loses at most the cell at work."""
    results = Results(folder / "results" / f"{spec.rows_of}.csv")
    known = {str(row["cell"]) for row in results.read()}
    if spec.on_cpu:
        setting = replace(setting, device="cpu")
    cells = spec.cells(setting.size)
    if only and "set" in only:
        cells = [*cells, *spec.further_cells(setting.size)]
    for cell in selected(cells, only or {}):
        if key_of(cell) in known:
            continue
        if setting.time_is_up():
            return
        tell(f"{spec.name}: {key_of(cell)}")
        try:
            rows = spec.run(cell, setting)
        except CellUnfinishedError as unfinished:
            tell(f"{spec.name}: {unfinished}")
            return
        results.add(cell, rows, setting.device)
        done = setting.checkpoint(spec.rows_of, cell)
        if done is not None:
            shutil.rmtree(done, ignore_errors=True)


def conclude(spec: Spec, folder: Path, size: Size) -> Outcome:
    """The verdict on the rows there are."""
    cells = spec.cells(size)
    rows = Results(folder / "results" / f"{spec.rows_of}.csv").read([*cells, *spec.further_cells(size)])
    return Outcome(spec, spec.verdict(rows, cells), rows)


def publish(outcomes: Sequence[Outcome], folder: Path, size: Size, command: str = "") -> Path:
    """The figures of the items and one page over all of them."""
    items = []
    for outcome in outcomes:
        drawn = outcome.spec.figures(outcome.rows) if outcome.rows else {}
        items.append(Item.of(outcome.spec, outcome.verdict, outcome.rows, drawn))
        for name, figure in drawn.items():
            save(figure, folder / "figures", name)
    return write_page(folder / "report.html", items, size, command)


def until(seconds: float | None) -> Callable[[], bool]:
    """Whether the time is up, from now."""
    begin = time.monotonic()
    return lambda: seconds is not None and time.monotonic() - begin > seconds
