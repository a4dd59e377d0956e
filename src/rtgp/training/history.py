"""The course of a training run as a table, and the hyperparameters under the names people know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpytorch
import torch
from gpytorch.means import ConstantMean
from torch import Tensor

from rtgp.errors import SettingError
from rtgp.objectives import EstimateStats

Row = dict[str, float | int | str]

_LARGEST = 64  # a parameter with more entries (a network's) is recorded by its norm


class History:
    """One row for each step; the loss is the estimate *before* the step's update, as are the hyperparameters."""

    def __init__(self, rows: list[Row] | None = None) -> None:
        self._rows = list(rows or [])

    @property
    def rows(self) -> list[Row]:
        """Copies of all rows, oldest first."""
        return [dict(row) for row in self._rows]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._rows[0]) if self._rows else ()

    def append(self, row: Row) -> None:
        self._rows.append(row)

    def column(self, name: str) -> list[float | int | str]:
        """One column, oldest row first."""
        if self._rows and name not in self._rows[0]:
            raise SettingError(f"The history has the columns {', '.join(self.columns)}. Got {name!r} instead.")
        return [row[name] for row in self._rows]

    def to_frame(self) -> Any:
        """As a pandas.DataFrame."""
        import pandas as pd

        return pd.DataFrame(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"History({len(self)} steps, columns: {', '.join(self.columns)})"


def make_row(
    step: int,
    loss: float,
    loss_error: float,
    gradient_norm: float,
    gradient_error: float,
    stats: EstimateStats,
    learning_rate: float,
    seconds: float,
    hyperparameters: dict[str, float],
) -> Row:
    """loss_error, gradient_error: standard errors, over probes and truncations; NaN where it was not measured."""
    drawn = stats.truncations
    first, second, probes = drawn if len(drawn) == 3 else (drawn * 3 if len(drawn) == 1 else (0, 0, 0))
    return {
        "step": step,
        "loss": loss,
        "loss_error": loss_error,
        "gradient_norm": gradient_norm,
        "gradient_error": gradient_error,
        "iterations": stats.iterations,
        "residual": stats.residual,
        "truncation_first": first,
        "truncation_second": second,
        "truncation_probes": probes,
        "rank": stats.rank,
        "neighbours": stats.neighbours,
        "rebuilt": int(stats.rebuilt),
        "learning_rate": learning_rate,
        "seconds": seconds,
        **hyperparameters,
    }


def hyperparameters(root: torch.nn.Module) -> dict[str, float]:
    """Every trainable parameter below `root` in constrained units.

    "noise", "outputscale", "lengthscale[0]", ..., "mean"; the dotted name where a short one would be ambiguous.
    """
    found = list(_constrained(root))
    short = [name for name, _, _ in found]
    values: dict[str, float] = {}
    for name, full, value in found:
        label = name if name and short.count(name) == 1 else full
        flat = value.detach().reshape(-1).tolist()
        if len(flat) > _LARGEST:
            values[f"{label} (norm)"] = float(value.detach().norm())
        elif len(flat) == 1 and name != "lengthscale":
            values[label] = flat[0]
        else:
            values.update({f"{label}[{i}]": entry for i, entry in enumerate(flat)})
    return values


def _constrained(root: torch.nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """(short name or "", dotted name, value) of each trainable parameter."""
    for full, parameter in root.named_parameters():
        if not parameter.requires_grad:
            continue
        path, _, own = full.rpartition(".")
        owner = root.get_submodule(path)
        constraint = owner.constraint_for_parameter_name(own) if isinstance(owner, gpytorch.Module) else None
        value = parameter if constraint is None else constraint.transform(parameter)
        own = own.removeprefix("raw_")
        if isinstance(owner, ConstantMean):
            short = "mean"
        else:
            short = own if isinstance(owner, gpytorch.Module) else ""
        path = path.removeprefix("model.").removeprefix("likelihood.")
        yield short, f"{path}.{own}" if path else own, value
