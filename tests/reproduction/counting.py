"""A spec whose cells cost nothing and leave a trace; as a program, it runs them slowly, to be killed.

counting.py FOLDER: run all cells, a moment each.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from reproduction import Check, Setting, Spec, run_cells
from reproduction.spec import concluded
from rtgp._report.style import axes, figure
from rtgp.errors import OutOfMemoryError, SettingError


class Counting(Spec):
    """Each cell has two rows. `told` gets the cells that were run; `right` is whether the check passes."""

    name = "counting"
    title = "Counting"
    claim = "The squares of the first numbers are known."
    settings = ("None.",)

    def __init__(self, told=None, right=True, pause=0.0) -> None:
        self.told = [] if told is None else told
        self.right, self.pause = right, pause

    def cells(self, size="full"):
        return [{"k": k, "kind": "square"} for k in range(3 if size == "quick" else 8)]

    def run(self, cell, setting):
        self.told.append(cell["k"])
        time.sleep(self.pause)
        return [{"value": cell["k"] ** 2, "root": 0.1 * cell["k"]}, {"value": -(cell["k"] ** 2), "note": "negative"}]

    def figures(self, rows):
        drawn = figure()
        axes(drawn, "Squares", "k", "square").plot([row["k"] for row in rows], [row["value"] for row in rows], "o")
        return {"counting": drawn}

    def judge(self, rows):
        return concluded([Check("squares", self.right, f"{len(rows)} rows")], "Counted.")


class Unlucky(Counting):
    """Its fifth cell fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def run(self, cell, setting):
        if cell["k"] == 4:
            raise self.error
        return super().run(cell, setting)


class Misled(Counting):
    """What is wrong with one cell is wrong with all of them."""

    def run(self, cell, setting):
        raise SettingError("The data are nowhere.")


class Weak(Counting):
    """All cells but the first meet the same limit, and leave a large array behind."""

    def run(self, cell, setting):
        if cell["k"] == 0:
            return super().run(cell, setting)
        held = Held()
        try:
            raise MemoryError(f"no room beside {held}")
        except MemoryError as error:
            raise OutOfMemoryError("no room") from error


class Held:
    """Counts how many of it there are."""

    alive = 0

    def __init__(self) -> None:
        Held.alive += 1

    def __del__(self) -> None:
        Held.alive -= 1


if __name__ == "__main__":
    run_cells(Counting(pause=0.15), Setting(), Path(sys.argv[1]), tell=lambda words: print(words, flush=True))  # noqa: T201
