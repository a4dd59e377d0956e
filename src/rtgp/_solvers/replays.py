"""Pieces of work that are done many times: recorded the first time, replayed from then on."""

from __future__ import annotations

import logging

from rtgp._solvers.recorder import Recorder, Recording, Work

_log = logging.getLogger("rtgp")


class Replays:
    """Owns the recordings of a few pieces of work, known by their numbers.

    A recording saves time and nothing else. Where one cannot be made, for whatever reason, the work is done piece by
    piece from then on. Without a recorder nothing is recorded.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._kept: dict[int, Recording] = {}

    def run(self, number: int, work: Work) -> None:
        """Do a piece of work, always the same for the same number."""
        if number not in self._kept:
            self._record(number, work)
        if number in self._kept:
            self._kept[number].replay()
        else:
            work()

    def _record(self, number: int, work: Work) -> None:
        if self._recorder is None:
            return
        try:
            self._kept[number] = self._recorder.record(work)
        except Exception as error:
            # Nothing of the work was executed: it can be done now. If the error is its own, that tells.
            self._recorder = None
            self.release()
            _log.warning(
                "Iterations of conjugate gradients could not be recorded on the card (%s: %s). They are launched one "
                "by one from here on: slower, with the same result.",
                type(error).__name__,
                str(error).partition("\n")[0],
            )

    def release(self) -> None:
        """Free the recordings. The next run records again, unless that has failed before."""
        while self._kept:
            self._kept.popitem()[1].release()
