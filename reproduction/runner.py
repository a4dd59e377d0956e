"""Runs the cells of items that have no rows yet, and writes results, figures and the report."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import shutil
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from reproduction.drawing import save
from reproduction.page import Item, write_page
from reproduction.rows import Results
from reproduction.spec import Cell, CellUnfinishedError, Deadline, Row, Setting, Size, Spec, Verdict, key_of

_log = logging.getLogger("rtgp")
_ALIKE = 3  # failures with the same words, before anything else has happened, are of the whole run


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
) -> int:
    """Run what is missing, in the spec's order, until the time is up; how many cells failed. A kill loses at most the
    cells at work; a cell that fails is told and left out.

    workers: processes that run cells side by side; this one writes their rows.
    """
    results = Results(folder / "results" / f"{spec.name}.csv")
    known = {str(row["cell"]) for row in results.read()}
    if spec.on_cpu:
        setting = replace(setting, device="cpu")
    cells = spec.cells(setting.size)
    if only and "set" in only:
        cells = [*cells, *spec.further_cells(setting.size)]
    left = [cell for cell in selected(cells, only or {}) if key_of(cell) not in known]
    failures = alike = 0
    words, none_yet = "", not known
    in_turn = workers == 1 or spec.alone
    for cell, outcome in _in_turn(spec, left, setting, tell) if in_turn else _beside(spec, left, setting, workers):
        if isinstance(outcome, CellUnfinishedError):
            tell(f"{spec.name}: {outcome}")
            continue
        if isinstance(outcome, Exception):
            alike = alike + 1 if str(outcome) == words else 1
            words = str(outcome)
            if none_yet and alike == _ALIKE:
                raise outcome
            tell(f"{spec.name}: {key_of(cell)} failed: {type(outcome).__name__}: {outcome}")
            _log.debug("%s: %s failed", spec.name, key_of(cell), exc_info=outcome)
            failures += 1
            continue
        none_yet = False
        if not in_turn:
            tell(f"{spec.name}: {key_of(cell)}")
        results.add(cell, outcome, setting.device)
        done = setting.checkpoint(spec.name, cell)
        if done is not None:
            shutil.rmtree(done, ignore_errors=True)
    return failures


def _in_turn(
    spec: Spec, cells: Sequence[Cell], setting: Setting, tell: Callable[[str], None]
) -> Iterator[tuple[Cell, list[Row] | Exception]]:
    for cell in cells:
        if setting.time_is_up():
            return
        tell(f"{spec.name}: {key_of(cell)}")
        try:
            yield cell, _run_and_clear(spec, cell, setting)
        except CellUnfinishedError as unfinished:
            yield cell, unfinished
            return
        except Exception as error:
            yield cell, error


def _beside(
    spec: Spec, cells: Sequence[Cell], setting: Setting, workers: int
) -> Iterator[tuple[Cell, list[Row] | Exception]]:
    """The same in several processes. What came of a cell comes when it is done."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")  # what has used a card cannot be forked
    waiting = deque(cells)
    running: dict[Future[list[Row]], Cell] = {}
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
        while waiting or running:
            while waiting and len(running) < workers and not setting.time_is_up():
                cell = waiting.popleft()
                running[pool.submit(_run_and_clear, spec, cell, setting)] = cell
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                error = future.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield cell, future.result() if error is None else error


def _run_and_clear(spec: Spec, cell: Cell, setting: Setting) -> list[Row]:
    """Nothing of a cell stays in memory, which the next one, or another worker's, will need."""
    try:
        return spec.run(cell, setting)
    except Exception as error:
        _let_go(error)
        raise
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _let_go(error: BaseException | None) -> None:
    """Clear what the frames of an error, and of those behind it, hold."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def conclude(spec: Spec, folder: Path, size: Size) -> Outcome:
    """The verdict on the rows there are."""
    cells = spec.cells(size)
    rows = Results(folder / "results" / f"{spec.name}.csv").read([*cells, *spec.further_cells(size)])
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
