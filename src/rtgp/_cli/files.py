"""Files of the user: tables in, predictions and models out; nothing half-written is left under a final name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtgp._cli.terminal import say
from rtgp._persistence.folder import DESCRIPTION_FILE
from rtgp._storage import write_text
from rtgp.datasets import Dataset, load, names
from rtgp.datasets._dataset import check_finite
from rtgp.datasets._numbers import numbers_of
from rtgp.errors import InputError
from rtgp.tables import Prepared, RawTable, TableSettings, prepare, read
from rtgp.tables._columns import Category
from rtgp.tables._reading import read_pieces

if TYPE_CHECKING:
    import pandas as pd

FIT_FILE = "fit.json"  # beside the model: where it came from
LEAST_ROWS = 2
_LARGEST_RECORD = 2**24  # bytes


@dataclass(frozen=True)
class Reading:
    """How a file is read: what is None is found out."""

    header: bool | None = None
    separator: str | None = None
    decimal: str | None = None

    def read(self, data: str, text: Iterable[str] = ()) -> RawTable:
        """The table in a file. text: columns that stay as they are written."""
        return read(data, self.header, self.separator, self.decimal, text)

    def pieces(self, data: str, text: Iterable[str] = ()) -> Iterator[RawTable]:
        """The same a piece at a time, for a file of any length."""
        return read_pieces(data, self.header, self.separator, self.decimal, text)


def read_data(
    data: str, target: str | None, reading: Reading, settings: TableSettings, data_dir: Path | None
) -> Prepared:
    """A table of one's own as numbers, or a named set where there is no such file."""
    if not Path(data).exists() and data in names():
        made = Prepared(load(data, data_dir), None, ())
        if target is not None and target != made.dataset.target_name:
            raise InputError(f"{data}: the target of this named set is {made.dataset.target_name!r}. Got {target!r}.")
    else:
        table = reading.read(data, settings.text)
        made = prepare(table, target, settings)
        made = replace(made, notes=(*table.notes, *made.notes))
    dataset = made.dataset
    if len(dataset) < LEAST_ROWS:
        raise InputError(f"{data}: expected at least {LEAST_ROWS} rows of data to learn from. Got {len(dataset)}.")
    if dataset.y.min() == dataset.y.max():
        raise InputError(
            f"{data}: the target {dataset.target_name!r} is constant ({dataset.y[0]:g} in all {len(dataset)} rows). "
            "Expected one that varies."
        )
    return made


def say_notes(made: Prepared) -> None:
    """What was found out and done, a sentence a line."""
    for note in made.notes:
        say(note if note.endswith(".") else f"{note}.")


def frame_of(dataset: Dataset) -> pd.DataFrame:
    """The inputs with their names, so that the model knows them."""
    import pandas as pd

    return pd.DataFrame(dataset.X, columns=list(dataset.feature_names))


def load_model(folder: Path, device: str | None = None) -> Any:
    """A saved model of one output."""
    from rtgp._estimator.regressor import GPRegressor

    regressor = GPRegressor.load(folder, device)
    if regressor.n_outputs_ > 1:
        raise InputError(
            f"Expected a model of one output. {str(folder)!r} has {regressor.n_outputs_}: use it from Python, "
            "rtgp.GPRegressor.load(folder), or save a model for each output."
        )
    return regressor


def text_columns(regressor: Any) -> tuple[str, ...]:
    """The columns of categories, whose cells are to be read as they are written."""
    encoder = getattr(regressor, "table_encoder_", None)
    return () if encoder is None else tuple(one.name for one in encoder.columns_ if isinstance(one, Category))


def inputs_of(regressor: Any, table: RawTable, target: str | None, gaps: str = "error", first: int = 1) -> pd.DataFrame:
    """The model's numeric inputs from rows of a table, each row by itself; other columns are left out. first: the
    number of the first of them."""
    import pandas as pd

    encoder, frame = getattr(regressor, "table_encoder_", None), table.frame
    features = [str(name) for name in regressor.feature_names_in_] if encoder is None else list(encoder.names_in_)
    if table.unnamed and frame.shape[1] == len(features):
        frame = frame.set_axis(features, axis=1)  # a file without a header: by position
    missing = [name for name in features if name not in frame.columns]
    if missing:
        surplus = [name for name in frame.columns if name not in features and name != target]
        got = f" It has {_listed(surplus)} instead." if surplus else ""
        raise InputError(
            f"{table.path}: no column {_listed(missing)}, which the model was trained with.{got} "
            f"Expected the columns {_listed(features)}."
        )
    if encoder is None:
        values = numbers_of(frame[features], Path(table.path), "", first)
        check_finite(values, tuple(features), table.path, first)
        return pd.DataFrame(values, columns=features)
    try:
        made: pd.DataFrame = encoder.transform(frame, gaps=gaps, first=first)
    except InputError as error:
        raise InputError(f"{table.path}: {error}") from error
    return made


def check_file_output(path: Path) -> None:
    """Say before the work begins that its result could not be written."""
    if path.is_dir():
        raise InputError(f"The output {str(path)!r} is a folder. Expected the name of a file.")
    _check_parent(path)


def check_model_output(folder: Path, overwrite: bool) -> None:
    """A new folder, an empty one, or with `overwrite` one that holds a model."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"The output {str(folder)!r} is a file. Expected the name of a folder for the model.")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / DESCRIPTION_FILE).is_file():
            raise InputError(f"The folder {str(folder)!r} holds other files and no model. Name another folder.")
        if not overwrite:
            raise InputError(f"The folder {str(folder)!r} already holds a model. Add --overwrite to replace it.")
    _check_parent(folder)


def check_checkpoint(folder: Path, output: Path) -> None:
    """A folder apart from the model's, which holds nothing but the model."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"The checkpoint {str(folder)!r} is a file. Expected the name of a folder.")
    if folder.absolute().is_relative_to(output.absolute()):
        raise InputError(
            f"The checkpoint {str(folder)!r} lies in the output {str(output)!r}, which holds the model alone. "
            "Name another folder."
        )
    _check_parent(folder)


def write_fit_record(folder: Path, record: dict[str, Any]) -> None:
    """Where the model in `folder` came from."""
    record = {**record, "model": _digest(folder)}
    write_text(folder / FIT_FILE, json.dumps(record, indent=1) + "\n")


def read_fit_record(folder: Path) -> dict[str, Any]:
    """What `write_fit_record` wrote; nothing where there is none, for the model is complete without it.

    Nor where it is of another model: the process may have been killed after it saved this one.
    """
    path = folder / FIT_FILE
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_RECORD:
            return {}
        record = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(record, dict) and record.get("model", _digest(folder)) == _digest(folder)
    except (OSError, ValueError, RecursionError):
        return {}
    return record if known else {}


def _digest(folder: Path) -> str:
    """Of the description of the model, which holds the checksum of all of it."""
    return hashlib.sha256((folder / DESCRIPTION_FILE).read_bytes()).hexdigest()


def _check_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise InputError(f"The folder {str(parent)!r} for the output {path.name!r} does not exist. Make it first.")
    if not os.access(parent, os.W_OK):
        raise InputError(f"The folder {str(parent)!r} may not be written to. Choose another place for {path.name!r}.")


def _listed(found: Sequence[str]) -> str:
    shown = ", ".join(map(repr, found[:10]))
    return shown if len(found) <= 10 else f"{shown} and {len(found) - 10} more"
