"""What is the same for every optimiser: recording steps, calling back, saving, going on from a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rtgp.training.checkpoint import CheckpointFolder
from rtgp.training.history import History, Row, make_row
from rtgp.training.problem import Evaluation, Problem
from rtgp.training.progress import Progress

Callback = Callable[[Row, Any], bool | None]


class Session:
    """One run of training, possibly the continuation of one that was interrupted."""

    def __init__(
        self, problem: Problem, callback: Callback | None, folder: CheckpointFolder | None, every: int, bar: Progress
    ) -> None:
        self.problem = problem
        self.history = History()
        self.start = ""
        self.resumed: dict[str, Any] | None = None  # the optimiser's part of the checkpoint
        self.finished: dict[str, Any] | None = None  # the outcome, if the run had come to its end
        self._callback, self._folder, self._every, self._bar = callback, folder, every, bar
        self._earlier = 0.0
        self._began = time.perf_counter()
        state = folder.load() if folder is not None else None
        if state is not None:
            self.history = History(state["rows"])
            self.start, self._earlier = state["start"], state["seconds"]
            self.resumed, self.finished = state["optimizer"], state["finished"]
            problem.load_state_dict(state["problem"])

    @property
    def seconds(self) -> float:
        """Of training, in this process and in those before it."""
        return self._earlier + time.perf_counter() - self._began

    def row(self, step: int, found: Evaluation, rate: float) -> Row:
        """The row of a step: the current parameters and the estimate at them."""
        values = self.problem.hyperparameters()
        loss_error = found.stats.value_error / self.problem.n
        gradient_error = math.nan if found.contrast is None else float(found.contrast.norm())
        errors = loss_error, found.gradient_norm, gradient_error
        return make_row(step, found.loss, *errors, found.stats, rate, self.seconds, values)

    def record(self, row: Row, steps: int) -> bool:
        """Append a row and call back; whether to stop."""
        self.history.append(row)
        self._bar.update(row, steps)
        return self._callback is not None and self._callback(dict(row), self.problem.model) is True

    def due(self, done: int) -> bool:
        return self._folder is not None and done % self._every == 0

    def save(self, done: int, optimizer: dict[str, Any], finished: dict[str, Any] | None = None) -> None:
        if self._folder is not None:
            state = {
                "problem": self.problem.state_dict(),
                "optimizer": optimizer,
                "rows": self.history.rows,
                "start": self.start,
                "seconds": self.seconds,
                "finished": finished,
            }
            self._folder.save(done, state)
