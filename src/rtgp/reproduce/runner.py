"""Runs the cells of items that have no rows yet, and writes results, figures and the report."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rtgp.errors import RTGPError
from rtgp.reproduce.drawing import save
from rtgp.reproduce.page import Item, write_page
from rtgp.reproduce.rows import Results
from rtgp.reproduce.spec import Cell, CellUnfinishedError, Deadline, Row, Setting, Size, Spec, Verdict, key_of


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
    workers: int = 1,
) -> None:
    """Run what is missing, in the spec's order, until the time is up. A kill loses at most the cells at work; a cell
    that fails is left out.

    workers: processes that run cells side by side; this one writes their rows.
    """
    results = Results(folder / "results" / f"{spec.rows_of}.csv")
    known = {str(row["cell"]) for row in results.read()}
    if spec.on_cpu:
        setting = replace(setting, device="cpu")
    cells = spec.cells(setting.size)
    if only and "set" in only:
        cells = [*cells, *spec.further_cells(setting.size)]
    left = [cell for cell in selected(cells, only or {}) if key_of(cell) not in known]
    finished = _in_turn(spec, left, setting, tell) if workers == 1 else _beside(spec, left, setting, tell, workers)
    for cell, rows in finished:
        results.add(cell, rows, setting.device)
        done = setting.checkpoint(spec.rows_of, cell)
        if done is not None:
            shutil.rmtree(done, ignore_errors=True)


def _in_turn(
    spec: Spec, cells: Sequence[Cell], setting: Setting, tell: Callable[[str], None]
) -> Iterator[tuple[Cell, list[Row]]]:
    for cell in cells:
        if setting.time_is_up():
            return
        tell(f"{spec.name}: {key_of(cell)}")
        try:
            yield cell, spec.run(cell, setting)
        except CellUnfinishedError as unfinished:
            tell(f"{spec.name}: {unfinished}")
            return
        except RTGPError as error:
            tell(f"{spec.name}: {key_of(cell)} failed: {error}")


def _beside(
    spec: Spec, cells: Sequence[Cell], setting: Setting, tell: Callable[[str], None], workers: int
) -> Iterator[tuple[Cell, list[Row]]]:
    """The same in several processes. The rows of a cell come when it is done."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")  # what has used a card cannot be forked
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
        running = {pool.submit(_run_one, spec, cell, setting): cell for cell in cells}
        for future in as_completed(running):
            cell = running[future]
            try:
                rows = future.result()
            except RTGPError as error:
                tell(f"{spec.name}: {key_of(cell)}: {error}")
                continue
            tell(f"{spec.name}: {key_of(cell)}")
            yield cell, rows


def _run_one(spec: Spec, cell: Cell, setting: Setting) -> list[Row]:
    if setting.time_is_up():
        raise CellUnfinishedError("not begun, the time was up")
    return spec.run(cell, setting)


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


def until(seconds: float | None) -> Deadline:
    """Whether the time is up, from now."""
    return Deadline() if seconds is None else Deadline(time.time() + seconds)
