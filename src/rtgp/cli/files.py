"""Files of the user: tables in, predictions and models out; nothing half-written is left under a final name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtgp.datasets import Dataset, Table, load, names, read_table
from rtgp.errors import InputError
from rtgp.persistence.folder import DESCRIPTION_FILE
from rtgp.report.files import write_text

if TYPE_CHECKING:
    import pandas as pd

FIT_FILE = "fit.json"  # beside the model: where it came from
LEAST_ROWS = 2
_LARGEST_RECORD = 2**24  # bytes


def read_data(data: str, target: str | None, header: bool | None, data_dir: Path | None) -> Dataset:
    """A table of one's own, or a named set where there is no such file."""
    if not Path(data).exists() and data in names():
        dataset = load(data, data_dir)
        if target is not None and target != dataset.target_name:
            raise InputError(f"{data}: the target of this named set is {dataset.target_name!r}. Got {target!r}.")
    else:
        table = read_table(data, header)
        dataset = table.dataset(_column(target, table))
    if len(dataset) < LEAST_ROWS:
        raise InputError(f"{data}: expected at least {LEAST_ROWS} rows of data to learn from. Got {len(dataset)}.")
    if dataset.y.min() == dataset.y.max():
        raise InputError(
            f"{data}: the target {dataset.target_name!r} is constant ({dataset.y[0]:g} in all {len(dataset)} rows). "
            "Expected one that varies."
        )
    return dataset


def frame_of(dataset: Dataset) -> pd.DataFrame:
    """The inputs with their names, so that the model knows them."""
    import pandas as pd

    return pd.DataFrame(dataset.X, columns=list(dataset.feature_names))


def read_inputs(data: str, features: Sequence[str], target: str | None, header: bool | None) -> pd.DataFrame:
    """The model's input columns from a table, in the model's order; other columns are left out."""
    import pandas as pd

    table = read_table(data, header)
    frame = pd.DataFrame(table.values, columns=list(table.columns))
    if _unnamed(table) and len(table.columns) == len(features):
        frame.columns = pd.Index(list(features))  # a file without a header: by position
    missing = [name for name in features if name not in frame.columns]
    if missing:
        surplus = [name for name in frame.columns if name not in features and name != target]
        got = f" It has {_listed(surplus)} instead." if surplus else ""
        raise InputError(
            f"{data}: no column {_listed(missing)}, which the model was trained with.{got} "
            f"Expected the columns {_listed(features)}."
        )
    return frame[list(features)]


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


def _column(target: str | None, table: Table) -> str | int | None:
    """A name; in a file without a header a position from 1, as its columns are called "column 1", "column 2", ..."""
    if target is not None and target not in table.columns and target.strip() in table.columns:
        return target.strip()  # as the file has it: spaces around the names of a CSV file are left out
    if target is not None and target not in table.columns and target.isdigit() and _unnamed(table):
        place = int(target)
        if not 1 <= place <= len(table.columns):
            raise InputError(f"{table.name}: no target column {place}. It has the columns 1 to {len(table.columns)}.")
        return place - 1
    return target


def _unnamed(table: Table) -> bool:
    return table.columns == tuple(f"column {i}" for i in range(1, len(table.columns) + 1))


def _check_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise InputError(f"The folder {str(parent)!r} for the output {path.name!r} does not exist. Make it first.")
    if not os.access(parent, os.W_OK):
        raise InputError(f"The folder {str(parent)!r} may not be written to. Choose another place for {path.name!r}.")


def _listed(found: Sequence[str]) -> str:
    shown = ", ".join(map(repr, found[:10]))
    return shown if len(found) <= 10 else f"{shown} and {len(found) - 10} more"
