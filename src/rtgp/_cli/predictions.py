"""Files of predictions: one row for each row of a table, as CSV, CSV.GZ or Parquet, to the last bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from rtgp._extras import needs
from rtgp._storage import write_whole, writing
from rtgp.errors import SettingError

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".txt", ".tsv", ".csv.gz", ".txt.gz", ".tsv.gz", ".parquet")


def check_kind(path: Path) -> None:
    """Say before the work begins that there is no such kind of file."""
    if not path.name.lower().endswith(SUFFIXES):
        kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise SettingError(f"The output must be a {kinds} file. Got {path.name!r}.")


def write_predictions(path: Path, frame: pd.DataFrame) -> None:
    """Put the predictions under `path`, a Parquet file, whole or not at all."""
    buffer = io.BytesIO()
    with needs("data", "A Parquet file"):
        try:
            frame.to_parquet(buffer, index=False)
        except ImportError as error:  # pandas names its own choice of packages
            raise ModuleNotFoundError(name="pyarrow") from error
    with writing(path.name, path.parent):
        write_whole(path, buffer.getvalue())


def csv_text(frame: pd.DataFrame, separator: str = ",", header: bool = True) -> str:
    """With a header; numbers so that they are read to the same bits, an empty cell where there is none."""
    return str(frame.to_csv(index=False, sep=separator, lineterminator="\n", header=header))
