"""What a fit returns."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rtgp.methods import AnyMethod
from rtgp.training.history import History


class FitStatus(enum.Enum):
    """Why training ended."""

    CONVERGED = "converged"  # the stopping criterion was met
    STEPS = "steps"  # the number of steps was used up
    STOPPED = "stopped"  # the callback asked for it
    LIMIT = "limit"  # a further step leads where the objective cannot be computed
    INTERRUPTED = "interrupted"  # by the keyboard


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C during training. The model is usable, at the best parameters so far, and the checkpoint is written."""

    def __init__(self, result: FitResult) -> None:
        super().__init__(f"training was interrupted after {result.steps} steps")
        self.result = result
        self.model: object = None  # what was trained, where the library made it


@dataclass(frozen=True)
class FitResult:
    """How a fit went. The parameters themselves are in the model."""

    history: History
    status: FitStatus
    method: AnyMethod
    method_reason: str
    steps: int
    seconds: float
    loss: float  # negative log marginal likelihood per point at the final parameters, without priors
    loss_error: float  # its standard error; 0 where it is exact
    start: str  # where training began, in words
    message: str  # why it ended, in words
    optimizer: str = ""  # its name: what "auto" chose, or the class of a torch optimiser
    dtype: str = ""  # in which the last estimates were computed, "float32" or "float64"
    ends: tuple[float, ...] = ()  # the losses at which the trainings from several starts ended, best first

    def __repr__(self) -> str:
        return (
            f"FitResult({self.status.name}, steps={self.steps}, loss={self.loss:.5f} +- {self.loss_error:.1g}, "
            f"seconds={self.seconds:.1f}, method={type(self.method).__name__}, optimizer={self.optimizer}: "
            f"{self.message})"
        )
