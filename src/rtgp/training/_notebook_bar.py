"""A progress bar in a notebook: one HTML output that is replaced as training goes on.

It needs IPython only, which every kernel has. The bars of other packages need widgets in the browser and print a line
for each step where these are missing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rtgp._markup import text


def in_notebook() -> bool:
    """Whether outputs are shown by a notebook: the shell has a kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """Begins to show when it is made; `close` takes it away. least: seconds between two updates."""

    def __init__(self, steps: int, done: int = 0, least: float = 0.1) -> None:
        ipython: Any = sys.modules["IPython.display"]  # which the notebook's kernel has loaded: no dependency of ours
        self._html: Any = ipython.HTML
        self._least, self._shown, self._begin, self._first = least, 0.0, time.monotonic(), done
        self._handle: Any = ipython.display(self._html(self._bar(done, steps, "-")), display_id=True)

    def update(self, done: int, steps: int, loss: str) -> None:
        now = time.monotonic()
        if now - self._shown >= self._least or done >= steps:
            self._shown = now
            self._handle.update(self._html(self._bar(done, steps, loss)))

    def close(self) -> None:
        self._handle.update(self._html(""))

    def _bar(self, done: int, steps: int, loss: str) -> str:
        passed = time.monotonic() - self._begin
        made = done - self._first
        left = f", at most {_clock(passed / made * (steps - done))} left" if made else ""
        words = f"training: step {done} of at most {steps}, loss {loss}, {_clock(passed)}{left}"
        return f'<progress value="{done}" max="{steps}"></progress> <span>{text(words)}</span>'


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
