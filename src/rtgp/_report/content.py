"""What a report is made of: plain data, so that a report can be written from any fit, or from a file of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rtgp.errors import InputError

Array = npt.NDArray[np.float64]
Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Targets with the mean and standard deviation (noise included) predicted for them, in one unit.

    No target was known to the prediction of itself: it was held out, or left out one at a time. places: where on a map
    they are, for a model of two inputs.
    """

    y: Array  # (m,)
    mean: Array  # (m,)
    std: Array  # (m,)
    kind: str = "held-out"
    places: Array | None = None  # (m, 2)

    def __post_init__(self) -> None:
        for name in ("y", "mean", "std"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.y.ndim != 1 or len(self.y) == 0 or not self.y.shape == self.mean.shape == self.std.shape:
            raise InputError(
                "y, mean and std must be (m,) with the same m, at least 1. "
                f"Got {self.y.shape}, {self.mean.shape} and {self.std.shape}."
            )
        if self.places is not None and np.shape(self.places) != (len(self.y), 2):
            raise InputError(f"places must be ({len(self.y)}, 2). Got {np.shape(self.places)}.")
        if not (np.isfinite(self.y).all() and np.isfinite(self.mean).all() and (self.std > 0).all()):
            raise InputError("y and mean must be finite and std positive everywhere.")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def z(self) -> Array:
        """Standardised residuals: N(0, 1) where the predictions are right."""
        return (self.y - self.mean) / self.std


@dataclass(frozen=True, eq=False)
class Run:
    """One fitted model: how the training went, and how well it predicts."""

    name: str
    history: Sequence[Row] = ()  # rows of rtgp.training's History
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)  # standard errors, where known
    settings: Mapping[str, object] = field(default_factory=dict)
    predictions: Predictions | None = None

    def column(self, name: str) -> Array:
        """A column of the history as numbers; NaN where a row does not have it."""
        return np.array([_number(row.get(name)) for row in self.history])


@dataclass(frozen=True, eq=False)
class Curve:
    """A posterior over one input: mean and standard deviation on a grid, and the data."""

    x: Array  # (g,)
    mean: Array  # (g,)
    std: Array  # (g,)
    data_x: Array
    data_y: Array
    x_name: str
    y_name: str


@dataclass(frozen=True, eq=False)
class Surface:
    """A posterior over two inputs: mean and standard deviation on a rectangular grid, NaN where not shown."""

    x: Array  # (gx,)
    y: Array  # (gy,)
    mean: Array  # (gy, gx)
    std: Array  # (gy, gx)
    points: Array  # (n, 2): where the data are
    x_name: str
    y_name: str
    value_name: str
    aspect: float | None = None  # length of one unit of y over one unit of x; None: fill the frame
    note: str = ""
    data: Array | None = None  # (n,): what was observed at the points


@dataclass(frozen=True, eq=False)
class Slice:
    """The posterior along one input, the others held where they are in the middle of the data."""

    name: str
    x: Array  # (g,)
    mean: Array  # (g,)
    std: Array  # (g,)


@dataclass(frozen=True, eq=False)
class Slices:
    """A posterior over many inputs: slices along the most relevant ones, and what each input contributes.

    relevance: by how much the prediction changes (root mean square, in standard deviations of the target) where this
    input is that of another row.
    """

    slices: Sequence[Slice]
    relevance: Mapping[str, float]  # of all inputs, the largest first
    value_name: str


@dataclass(frozen=True, eq=False)
class Table:
    """Text cells under a head; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, eq=False)
class Report:
    """Everything `write_report` shows."""

    title: str
    summary: str
    runs: Sequence[Run]
    table: Table | None = None
    picture: Curve | Surface | Slices | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    command: str = ""
    target: str = "target"
    highlights: Sequence[tuple[str, str]] = ()  # what to know first: (name, value)
    advice: Sequence[str] = ()  # what to do next


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float | np.number) else float("nan")
