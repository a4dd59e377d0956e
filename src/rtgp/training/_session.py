"""What is the same for every optimiser: recording steps, calling back, saving, going on from a checkpoint."""

from __future__ import annotations

import copy
import math
import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rtgp._state import saved_count, saved_number
from rtgp.distributed import DisagreementError, Group, on_every_rank
from rtgp.training._checkpoint import CheckpointFolder
from rtgp.training._evaluation import Evaluation
from rtgp.training._history import History, Row, make_row, renamed_row
from rtgp.training._packing import pack, unpack
from rtgp.training._problem import Problem
from rtgp.training._progress import Progress

Callback = Callable[[Row, Any], bool | None]


@dataclass(frozen=True)
class CheckpointSettings:
    """How often a training is saved by default.

    A checkpoint holds the history, so one every ten steps would make the saving of a long run quadratic in its steps
    (at step 1200 of sgGP on 29,267 points it took 7 of 25 ms).

    Attributes
    ----------
    every : int
        The smallest number of steps between two checkpoints.
    part_lost : int
        A run that dies loses at most one of this many steps.
    """

    every: int = 10
    part_lost: int = 50


DEFAULT = CheckpointSettings()


class Session:
    """One run of training, possibly the continuation of one that was interrupted.

    Parameters
    ----------
    group : Group
        The ranks that train together. The first alone reads and writes checkpoints: what is saved is the same on every
        rank and does not depend on how many there are.
    """

    def __init__(
        self,
        problem: Problem,
        callback: Callback | None,
        folder: CheckpointFolder | None,
        every: int | None,
        bar: Progress,
        group: Group,
        settings: CheckpointSettings = DEFAULT,
    ) -> None:
        self.problem, self._group, self._settings = problem, group, settings
        self.history = History()
        self.start = ""
        self.resumed: dict[str, Any] | None = None  # the optimiser's part of the checkpoint
        self.finished: dict[str, Any] | None = None  # the outcome, if the run had come to its end
        self._callback, self._folder, self._every, self._bar = callback, folder, every, bar
        self.final: tuple[float, float] | None = None  # the loss at the end and its error, where it is known already
        self._kept: tuple[int, dict[str, Any]] | None = None  # what would be saved if it were broken off now
        self._earlier = 0.0
        self._began = time.perf_counter()
        state = self._load()
        if state is not None:
            with self.restoring():
                names = list(problem.hyperparameters())
                rows = [renamed_row(_saved_row(row, k), names) for k, row in enumerate(state["rows"])]
                self.history = History(rows)
                self.start, self._earlier = str(state["start"]), saved_number(state, "seconds", (0.0, math.inf))
                self.resumed, self.finished = dict(state["optimizer"]), state["finished"]
                problem.load_state_dict(state["problem"])
        self._saved = len(self.history)  # steps
        self._best = problem.snapshot()  # parameters, for a training that is broken off

    def _load(self) -> dict[str, Any] | None:
        folder = self._folder
        if folder is None:
            return None
        if self._group.size == 1:
            return folder.load(self.problem.X.device)

        def read() -> tuple[Any, dict[str, Tensor]] | None:
            tensors: dict[str, Tensor] = {}
            state = folder.load(self.problem.X.device)
            return None if state is None else (pack(state, tensors), tensors)

        found = self._group.from_first(read)
        state: dict[str, Any] | None = None if found is None else unpack(*found, self.problem.X.device)
        return state

    def restoring(self) -> AbstractContextManager[None]:
        """A context for work with the content of a checkpoint: an error there is the checkpoint's."""
        return nullcontext() if self._folder is None else self._folder.restoring()

    @property
    def seconds(self) -> float:
        """Seconds of training, in this process and in those before it."""
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
        stop = self._callback is not None and self._callback(dict(row), self.problem.model) is True
        return self._agreed(stop)

    def _agreed(self, stop: bool) -> bool:
        """Whether any rank wants to stop. An error if they are no longer at the same point with the same draws."""
        if self._group.size == 1:
            return stop
        point, draws = self.problem.point.numpy().tobytes(), self.problem.generator.get_state().numpy().tobytes()
        found = self._group.objects((zlib.crc32(point), zlib.crc32(draws), stop))
        for rank, (at, drawn, _) in enumerate(found):
            if (at, drawn) != found[0][:2]:
                what = "the parameters" if at != found[0][0] else "the state of the random generator"
                raise on_every_rank(
                    DisagreementError(
                        f"After step {len(self.history)} {what} of rank {rank} and of rank 0 differ. Expected every "
                        "rank to run the same program on the same data and the same kind of hardware."
                    )
                )
        return any(wanted for _, _, wanted in found)

    def keep(self, done: int, optimizer: dict[str, Any] | None, best: Tensor | None = None) -> None:
        """Note that a step is complete: what an interruption during the next one leaves behind.

        That is the best parameters (p,), by default the present ones, and the state to go on from. None for the state
        means that of the step before.
        """
        self._best = self.problem.snapshot() if best is None else self.problem.pieces(best)
        if optimizer is not None and self._folder is not None and self._group.size == 1:
            # A copy of the part that the optimiser goes on to change. The objective replaces its own, which is large.
            self._kept = (done, self._state(copy.deepcopy(optimizer), None))

    def broken_off(self) -> None:
        """Leave the model at its best parameters, and the checkpoint of the last complete step."""
        self.problem.restore(self._best)
        if self._folder is not None and self._kept is not None and self._kept[0] != self._saved:
            self._folder.save(*self._kept)

    def due(self, done: int) -> bool:
        """Whether to save after `done` steps: the same on every rank."""
        if self._folder is None:
            return False
        if self._every is not None:
            return done % self._every == 0
        return done == 0 or done - self._saved >= max(self._settings.every, done // self._settings.part_lost)

    def save(self, done: int, optimizer: dict[str, Any], finished: dict[str, Any] | None = None) -> None:
        if self._folder is not None:
            state = self._state(optimizer, finished)  # on every rank, which give their parts of it together
            if self._group.first:
                self._folder.save(done, state)
            self._saved = done

    def _state(self, optimizer: dict[str, Any], finished: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "problem": self.problem.state_dict(),
            "optimizer": optimizer,
            "rows": self.history.rows,
            "start": self.start,
            "seconds": self.seconds,
            "finished": finished,
        }


def _saved_row(row: dict[str, Any], step: int) -> Row:
    """A row of the history as it was saved: numbers, of which only what was not measured may be NaN."""
    if saved_count(row, "step") != step:
        raise ValueError(f"row {step} of the history is that of step {row['step']}")
    saved_number(row, "loss")
    for name, value in row.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"'{name}' of step {step} must be a number. Got {type(value).__name__}.")
    return dict(row)
