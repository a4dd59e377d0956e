"""From a table to what a model learns from: a target, numeric inputs, and what was done, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rtgp.datasets._dataset import Array, Dataset
from rtgp.datasets._numbers import numbers_of
from rtgp.errors import InputError, SettingError
from rtgp.tables._encoder import TableEncoder
from rtgp.tables._kinds import Asked, find_kind
from rtgp.tables._reading import RawTable

if TYPE_CHECKING:
    import pandas as pd

GAPS = ("impute", "drop")


@dataclass(frozen=True)
class TableSettings:
    """What is said of the columns of a table; the rest is found out.

    Parameters
    ----------
    inputs : tuple of str, optional
        The columns to use; by default all that there is something to learn from.
    drop : tuple of str
        Columns to leave out.
    ids : tuple of str
        Columns that name the rows, and are no inputs.
    categories : tuple of str
        Columns to take for categories whatever they hold.
    date_format : str, optional
        How dates are written.
    gaps : {"impute", "drop"}
        Whether gaps are filled and marked, or their rows left out.
    encode : bool
        Whether numbers are made of anything else; if not, it is refused.

    Examples
    --------
    >>> from rtgp.tables import TableSettings
    >>> TableSettings(ids=("key",), categories=("zip",)).text
    ('key', 'zip')
    """

    inputs: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    date_format: str | None = None
    gaps: str = "impute"
    encode: bool = True

    def __post_init__(self) -> None:
        if self.gaps not in GAPS:
            raise SettingError(f"Gaps are to be one of {', '.join(GAPS)}. Got {self.gaps!r}.")

    @property
    def text(self) -> tuple[str, ...]:
        """Columns that are read as they are written."""
        return (*self.ids, *self.categories)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A numeric data set, and how it was made.

    Parameters
    ----------
    dataset : Dataset
        The target and the numeric inputs.
    encoder : TableEncoder, optional
        What has made them; None where the columns are numbers as they are.
    notes : tuple of str
        What was done, a sentence each.

    Examples
    --------
    >>> from rtgp.datasets import Dataset
    >>> from rtgp.tables import Prepared
    >>> Prepared(Dataset([[1.0], [2.0]], [0.5, 0.7]), None, ()).dataset.target_name
    'y'
    """

    dataset: Dataset
    encoder: TableEncoder | None
    notes: tuple[str, ...]


def prepare(raw: RawTable, target: str | None, settings: TableSettings) -> Prepared:
    """The target of a table against its other columns, as numbers.

    Parameters
    ----------
    raw : RawTable
        What `read` has read.
    target : str, optional
        A column's name, or its number from 1 where the file names none; by default the last column.
    settings : TableSettings
        What is said of the columns.

    Returns
    -------
    Prepared
        The numbers, and what was done.

    Examples
    --------
    >>> import pandas as pd
    >>> from rtgp.tables import RawTable, TableSettings, prepare
    >>> frame = pd.DataFrame({"c": ["a", "b", "a", "b", "a"], "x": [0.1, 0.5, 0.3, 0.2, 0.4], "y": [1, 2, 3, None, 5]})
    >>> made = prepare(RawTable(frame, "table", "table.csv"), "y", TableSettings())
    >>> made.dataset.feature_names, len(made.dataset)
    (('c=a', 'c=b', 'x'), 4)
    """
    try:
        return _prepare(raw, target, settings)
    except InputError as error:
        words = str(error)
        raise InputError(words if words.startswith(raw.path) else f"{raw.path}: {words}") from error


def _prepare(raw: RawTable, target: str | None, settings: TableSettings) -> Prepared:
    frame, place = raw.frame, target_of(raw, target)
    _check_asked(frame, place, settings)
    named = [name for name in frame.columns if name not in (place, *settings.ids)]
    if not named:
        raise InputError(f"at least one input column and the target. Got only {place!r}.")
    notes: list[str] = []
    y = _target(frame[place], place)
    rows = np.isfinite(y)
    if not rows.all():
        gone = int((~rows).sum())
        notes.append(f"{gone:,} row{'s' * (gone != 1)} without a {place!r} left out")
        if rows.sum() < 2:
            raise InputError(
                f"expected at least 2 rows with a target. Got {rows.sum()}: {place!r} is missing in {gone:,} row(s), "
                f"first in row {int(np.argmin(rows)) + 1}."
            )
    if not settings.encode:
        used = [name for name in settings.inputs or named if name not in settings.drop]
        X = numbers_of(frame.loc[rows, used], Path(raw.path))
        return Prepared(Dataset(X, y[rows], tuple(used), place, raw.name), None, tuple(notes))
    encoder = TableEncoder(settings.inputs, settings.drop, settings.categories, settings.date_format)
    encoder.fit(frame.loc[rows, named])
    if settings.gaps == "drop":
        full = rows & frame[list(encoder.names_in_)].notna().all(axis=1).to_numpy()
        if gone := int(rows.sum() - full.sum()):
            notes.append(f"{gone:,} row{'s' * (gone != 1)} with gaps left out")
            if full.sum() < 2:
                raise InputError(f"without the rows with gaps {full.sum()} are left. Fill them in: --gaps impute.")
            rows = full
            encoder.fit(frame.loc[rows, named])
    notes += [*(f"{name!r} left out: it {why}" for name, why in encoder.left_out_.items()), *encoder.notes_]
    made = encoder.transform(frame.loc[rows, named])
    dataset = Dataset(made.to_numpy(), y[rows], tuple(made.columns), place, raw.name)
    return Prepared(dataset, encoder, tuple(notes))


def target_of(raw: RawTable, target: str | None) -> str:
    """The name of the target column."""
    names = list(map(str, raw.frame.columns))
    if target is None:
        return names[-1]
    if target in names:
        return target
    if target.strip() in names:
        return target.strip()  # spaces around the names of a CSV file are left out
    if target.isdigit() and raw.unnamed:
        if not 1 <= int(target) <= len(names):
            raise InputError(f"no target column {int(target)}. It has the columns 1 to {len(names)}.")
        return names[int(target) - 1]
    raise InputError(f"no target column {target!r}. The columns are {_listed(names)}.")


def _target(cells: pd.Series, name: str) -> Array:
    found = find_kind(name, cells, Asked(kept=True))
    if found.bad:
        raise InputError(f"the target {name!r} {found.bad}. Expected numbers.")
    numbers = found.column is not None and found.column.kind == "number"
    if found.column is not None and not numbers:
        held = cells[cells.notna()]
        what = "dates" if found.column.kind == "date" else "words"
        raise InputError(_not_numbers(name, what, held))
    if not numbers:  # one word in every row, too many of them, or nothing
        held = cells[cells.notna()]
        if len(held) == 0:
            raise InputError(f"the target {name!r} is empty in all {len(cells)} rows. Expected numbers.")
        raise InputError(_not_numbers(name, "words", held))
    values: Array = cells.astype(np.float64).to_numpy()
    return values


def _not_numbers(name: str, what: str, held: pd.Series) -> str:
    return (
        f"the target {name!r} holds {what} ({held.iloc[0]!r:.40} in row {held.index[0] + 1}), and numbers are what is "
        "predicted. Name another column by --target."
    )


def _check_asked(frame: pd.DataFrame, target: str, settings: TableSettings) -> None:
    asked = {"inputs": settings.inputs or (), "drop": settings.drop, "id": settings.ids,
             "categories": settings.categories}  # fmt: skip
    for option, names in asked.items():
        unknown = [name for name in names if name not in frame.columns]
        if unknown:
            raise InputError(f"no column {_listed(unknown)}, named by --{option}. It has {_listed(frame.columns)}.")
        if target in names:
            raise InputError(f"--{option} names the target {target!r}. Name other columns.")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
