"""A progress bar with the time left, where one is asked for: in a terminal or in a notebook."""

from __future__ import annotations

from typing import Any

from rtgp.training._history import Row
from rtgp.training._notebook_bar import NotebookBar, in_notebook


class Progress:
    """A context in which `update` moves the bar; does nothing unless shown."""

    def __init__(self, shown: bool, steps: int, done: int = 0) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._notebook: NotebookBar | None = None
        if shown and in_notebook():
            self._notebook = NotebookBar(steps, done)
        elif shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            # To the standard error: the standard output belongs to the caller's results.
            console = Console(stderr=True)
            self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
            self._task = self._bar.add_task("training", total=steps, completed=done, loss="-")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._notebook is not None:
            self._notebook.close()

    def update(self, row: Row, steps: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=int(row["step"]) + 1, total=steps, loss=f"{row['loss']:.4f}")
        if self._notebook is not None:
            self._notebook.update(int(row["step"]) + 1, steps, f"{row['loss']:.4f}")
