"""How an optimiser's loop ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rtgp.training.result import FitStatus


@dataclass(frozen=True)
class Outcome:
    status: FitStatus
    steps: int
    message: str
    state: dict[str, Any]  # of the optimiser, for the checkpoint
