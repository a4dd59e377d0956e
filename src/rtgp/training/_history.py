"""The course of a training run as a table, and the hyperparameters under the names people know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, overload

import gpytorch
import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean
from torch import Tensor

from rtgp._kernels.names import KernelNames
from rtgp._markup import ends, table
from rtgp._objectives import EstimateStats
from rtgp.errors import SettingError

Row = dict[str, float | int | str]

_SHOWN = (
    "step",
    "loss",
    "loss_error",
    "gradient_norm",
    "iterations",
    "seconds",
)  # in a notebook, of what is no parameter
_PROGRESS_ENDS = "seconds"  # the columns behind it are hyperparameters
LARGEST = 64  # a parameter with more entries (a network's) is recorded by its norm


class History:
    """The course of a training: one row for each step.

    The loss and the hyperparameters of a row are those before the update of its step.

    Parameters
    ----------
    rows : list of dict, optional
        The rows to begin with, all with the same columns.

    Examples
    --------
    >>> import rtgp
    >>> history = rtgp.History([{"step": 1, "loss": 1.5}])
    >>> history.append({"step": 2, "loss": 1.25})
    >>> history.column("loss")
    [1.5, 1.25]
    >>> len(history), history.columns
    (2, ('step', 'loss'))
    >>> history["loss"], history[-1], [row["step"] for row in history[:1]]
    ([1.5, 1.25], {'step': 2, 'loss': 1.25}, [1])
    """

    def __init__(self, rows: list[Row] | None = None) -> None:
        self._rows = list(rows or [])

    @property
    def rows(self) -> list[Row]:
        """Copies of all rows, oldest first."""
        return [dict(row) for row in self._rows]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._rows[0]) if self._rows else ()

    def append(self, row: Row) -> None:
        """Add a row at the end.

        Parameters
        ----------
        row : dict
            A value for each column.
        """
        self._rows.append(row)

    def column(self, name: str) -> list[float | int | str]:
        """One column, oldest row first.

        Parameters
        ----------
        name : str
            The name of the column.

        Returns
        -------
        list
            A value for each row.

        Raises
        ------
        SettingError
            If there is no such column.
        """
        if self._rows and name not in self._rows[0]:
            raise SettingError(f"The history has the columns {', '.join(self.columns)}. Got {name!r} instead.")
        return [row[name] for row in self._rows]

    def to_frame(self) -> Any:
        """The history as a table.

        Returns
        -------
        pandas.DataFrame
            One row for each step.
        """
        import pandas as pd

        return pd.DataFrame(self._rows)

    @overload
    def __getitem__(self, at: str) -> list[float | int | str]: ...

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> History: ...

    def __getitem__(self, at: str | int | slice) -> list[float | int | str] | Row | History:
        """history["loss"]: a column; history[-1]: a row; history[:5]: the history of these steps."""
        if isinstance(at, str):
            return self.column(at)
        if isinstance(at, slice):
            return History(self._rows[at])
        return dict(self._rows[at])

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _repr_html_(self) -> str:
        """The first and the last steps, for notebooks."""
        columns = self.columns
        behind = columns.index(_PROGRESS_ENDS) + 1 if _PROGRESS_ENDS in columns else len(columns)
        shown = [name for name in columns[:behind] if name in _SHOWN] + list(columns[behind:])
        cells = [[_short(row[name]) for name in shown] for row in self._rows]
        return table(shown, ends(cells), f"{len(self)} steps", "history.to_frame() has all columns.")

    def __repr__(self) -> str:
        return f"History({len(self)} steps, columns: {', '.join(self.columns)})"


def _short(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
    """The row of a step. Standard errors are over probes and truncations, and NaN where they were not measured."""
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


def renamed_row(row: Row, names: list[str]) -> Row:
    """A row that an earlier version wrote, whose hyperparameters stand in the same order under other names."""
    keys = list(row)
    own = keys[keys.index("seconds") + 1 :] if "seconds" in keys else []
    now = dict(zip(own, names, strict=True)) if len(own) == len(names) else {}
    return {now.get(key, key): value for key, value in row.items()}


def hyperparameters(root: torch.nn.Module) -> dict[str, float]:
    """The value of every trainable parameter of a module, in constrained units.

    Parameters
    ----------
    root : torch.nn.Module
        A model, a kernel or a likelihood.

    Returns
    -------
    dict of str to float
        By name: "noise", "outputscale", "lengthscale[lat]", ..., "mean". Inputs have numbers from 0 where they have no
        names. What several kernels have is called after the kernel, as "rbf.outputscale"; anything else that a short
        name would leave ambiguous by its dotted one. Of a parameter with more than 64 entries, such as a network's, the
        norm.

    Examples
    --------
    >>> import gpytorch
    >>> from rtgp.training import hyperparameters
    >>> {name: round(value, 4) for name, value in hyperparameters(gpytorch.kernels.RBFKernel()).items()}
    {'lengthscale[0]': 0.6931}
    """
    names = KernelNames.of(root)
    found = list(_constrained(root, names))
    short = [one.short for one in found]
    values: dict[str, float] = {}
    for one in found:
        label = one.short if one.short and short.count(one.short) == 1 else one.full
        flat = one.value.detach().reshape(-1).tolist()
        if len(flat) > LARGEST:
            labels, flat = [f"{label} (norm)"], [float(one.value.detach().norm())]
        elif one.entries is not None:
            labels = [f"{label}[{entry}]" for entry in one.entries]
        elif len(flat) == 1 and (one.short != "lengthscale" or one.shared):
            labels = [label]
        else:
            labels = [f"{label}[{i}]" for i in range(len(flat))]
        for name, entry in zip(labels, flat, strict=True):
            while name in values:
                name += "'"
            values[name] = entry
    return values


@dataclass(frozen=True)
class _Parameter:
    short: str  # or ""
    full: str  # unambiguous
    value: Tensor
    entries: list[str] | None = None  # the inputs that its entries belong to
    shared: bool = False  # one entry for several inputs that have names


def _constrained(root: torch.nn.Module, names: KernelNames) -> Iterator[_Parameter]:
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
        if isinstance(owner, Kernel) and id(owner) in names.kernels:
            entries = names.entries(owner, own, value.numel())
            shared = entries is None and names.inputs[id(owner)] is not None
            yield _Parameter(short, f"{names.kernels[id(owner)]}.{own}", value, entries, shared)
            continue
        path = path.removeprefix("model.").removeprefix("likelihood.")
        yield _Parameter(short, f"{path}.{own}" if path else own, value)
