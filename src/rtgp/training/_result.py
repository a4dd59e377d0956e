"""What a fit returns."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rtgp._markup import pairs
from rtgp._methods import AnyMethod
from rtgp.training._history import History


class FitStatus(enum.Enum):
    """Why training ended.

    Attributes
    ----------
    CONVERGED
        The stopping criterion was met.
    STEPS
        The number of steps was used up.
    STOPPED
        The callback asked for it.
    LIMIT
        A further step leads where the objective cannot be computed.
    INTERRUPTED
        By Ctrl-C.

    Examples
    --------
    >>> from rtgp.training import FitStatus
    >>> FitStatus("converged") is FitStatus.CONVERGED
    True
    """

    CONVERGED = "converged"
    STEPS = "steps"
    STOPPED = "stopped"
    LIMIT = "limit"
    INTERRUPTED = "interrupted"


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C during training. The model is usable, at the best parameters so far, and the checkpoint is written.

    Parameters
    ----------
    result : FitResult
        How the fit went until then.
    """

    def __init__(self, result: FitResult) -> None:
        super().__init__(f"training was interrupted after {result.steps} steps")
        self.result = result
        self.model: object = None  # what was trained, where the library made it


@dataclass(frozen=True)
class FitResult:
    """How a fit went. The parameters themselves are in the model.

    Attributes
    ----------
    history : History
        One row for each step.
    status : FitStatus
        Why training ended.
    method : settings object
        The method that was used.
    method_reason : str
        Why that one.
    steps : int
        The number of steps that were taken.
    seconds : float
        How long training took.
    loss : float
        The negative log marginal likelihood per point at the final parameters, without priors.
    loss_error : float
        Its standard error; 0 where the loss is exact.
    start : str
        Where training began, in words.
    message : str
        Why it ended, in words.
    optimizer : str
        The name of the optimiser: what "auto" chose, or the class of a torch optimiser.
    dtype : str
        "float32" or "float64": in which the last estimates were computed.
    ends : tuple of float
        The losses at which the trainings from several starts ended, best first.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> result = rtgp.GPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0])).fit_result_
    >>> type(result.method).__name__, result.loss_error
    ('Cholesky', 0.0)
    """

    history: History
    status: FitStatus
    method: AnyMethod
    method_reason: str
    steps: int
    seconds: float
    loss: float
    loss_error: float
    start: str
    message: str
    optimizer: str = ""
    dtype: str = ""
    ends: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return (
            f"FitResult({self.status.name}, steps={self.steps}, loss={self.loss:.5f} +- {self.loss_error:.1g}, "
            f"seconds={self.seconds:.1f}, method={type(self.method).__name__}, optimizer={self.optimizer}: "
            f"{self.message})"
        )

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows: list[tuple[str, object]] = [
            ("ended", f"{self.status.value}: {self.message}"),
            ("loss per point", f"{self.loss:.5f}" + (f" ± {self.loss_error:.1g}" if self.loss_error else " (exact)")),
            ("steps", f"{self.steps} in {self.seconds:.1f} s by {self.optimizer}, {self.dtype}"),
            ("method", f"{self.method} ({self.method_reason})"),
            ("began from", self.start),
        ]
        if len(self.ends) > 1:
            rows.append(("losses of all starts", ", ".join(f"{end:.5f}" for end in self.ends)))
        return pairs(rows, "FitResult")
