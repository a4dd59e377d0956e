"""What an item of the paper (a figure, a table, a theorem) is to the runner.

A spec names its cells, the independent units of work; runs one of them into rows; draws all rows; and judges them.
It holds nothing between calls: everything it knows about a run is in the rows.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from matplotlib.figure import Figure

from reproduction.methods import METHODS, Factory
from rtgp._report import Table
from rtgp.errors import RTGPError

Value = str | int | float
Cell = Mapping[str, Value]  # plain settings: set, method, split, n, ...
Row = Mapping[str, Value]

Size = Literal["quick", "reduced", "full"]
SIZES: tuple[Size, ...] = ("quick", "reduced", "full")  # minutes on 2 cores for all; minutes each; as in the paper

REPRODUCED, CORRECTED = "reproduced", "reproduced with a correction"
NOT_REPRODUCED, INCOMPLETE = "not reproduced", "incomplete"


class CellUnfinishedError(RTGPError):
    """The time was up before a cell came to its end; its checkpoint stays."""


def key_of(cell: Cell) -> str:
    """What identifies a cell in the results: all its settings, in their order."""
    return " ".join(f"{name}={value}" for name, value in cell.items())


@dataclass(frozen=True)
class Deadline:
    """Whether the time is up. Unlike a closure it can be handed to another process."""

    at: float = math.inf  # seconds of the clock

    def __call__(self) -> bool:
        return time.time() > self.at


@dataclass(frozen=True)
class Setting:
    """What a run takes from outside the cell."""

    device: str = "cpu"
    size: Size = "full"
    data_dir: Path | None = None
    checkpoints: Path | None = None  # a folder for the state of unfinished cells
    time_is_up: Callable[[], bool] = Deadline()  # for several workers, like `methods`, nothing that cannot be pickled
    methods: Mapping[str, Factory] = field(default_factory=lambda: METHODS)

    def checkpoint(self, spec: str, cell: Cell) -> Path | None:
        """The folder of one cell's state."""
        name = key_of(cell).replace(" ", ",").replace("/", "-")
        return None if self.checkpoints is None else self.checkpoints / spec / name


@dataclass(frozen=True)
class Check:
    """One statement that the rows must bear out."""

    name: str
    passed: bool
    words: str  # the figures behind it


@dataclass(frozen=True)
class Verdict:
    """How an item came out."""

    status: str
    words: str
    checks: tuple[Check, ...] = ()

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)


class Spec(ABC):
    """One item of the paper."""

    name: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]  # in one sentence
    settings: ClassVar[tuple[str, ...]]  # as the paper states them, and what is taken where it is silent
    departures: ClassVar[tuple[str, ...]] = ()  # where the authors' code departed from the paper

    on_cpu: ClassVar[bool] = False  # so small that a GPU would only wait
    alone: ClassVar[bool] = False  # measures time: no cells side by side

    @abstractmethod
    def cells(self, size: Size = "full") -> list[Cell]:
        """The units of work, the most telling first. An item that is small itself has the same ones at every size."""

    def further_cells(self, size: Size = "full") -> list[Cell]:
        """Cells that are run only where a filter asks for their set; no verdict waits for them."""
        return []

    @abstractmethod
    def run(self, cell: Cell, setting: Setting) -> list[Row]:
        """Compute one cell. Raises CellUnfinishedError when the time is up; the next call goes on."""

    @abstractmethod
    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Figures by file name, in the colours of rtgp._report.style."""

    @abstractmethod
    def judge(self, rows: Sequence[Row]) -> Verdict:
        """The verdict if no cell were missing."""

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """The figures behind the verdict, for the documentation."""
        return []

    def verdict(self, rows: Sequence[Row], cells: Sequence[Cell]) -> Verdict:
        """The verdict on what there is; incomplete while cells are missing."""
        known = {str(row["cell"]) for row in rows}
        missing = [cell for cell in cells if key_of(cell) not in known]
        if not missing:
            return self.judge(rows)
        words = f"{len(cells) - len(missing)} of {len(cells)} cells have been run."
        if not rows:
            return Verdict(INCOMPLETE, words)
        try:
            sofar = self.judge(rows)
        except (KeyError, ValueError, IndexError, ZeroDivisionError):  # a comparison whose other side is missing
            return Verdict(INCOMPLETE, words)
        return Verdict(INCOMPLETE, f"{words} So far: {sofar.words}", sofar.checks)


def concluded(checks: Sequence[Check], words: str, correction: str = "") -> Verdict:
    """Reproduced if every check passes, with the correction if there is one to tell."""
    if not all(check.passed for check in checks):
        names = "; ".join(check.name for check in checks if not check.passed)
        return Verdict(NOT_REPRODUCED, f"{words} Does not hold: {names}.".strip(), tuple(checks))
    if correction:
        return Verdict(CORRECTED, f"{words} {correction}".strip(), tuple(checks))
    return Verdict(REPRODUCED, words, tuple(checks))
