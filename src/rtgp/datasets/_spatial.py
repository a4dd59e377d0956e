"""Public spatial sets whose files need cleaning: what is dropped, which units the inputs get, and how they are split.

- britain-magnetic: the magnetic anomaly over Great Britain, 480,746 rows. Rows given twice are dropped.
- osborne-magnetic: an aeromagnetic survey in Queensland, 990,987 rows along 307 flight lines. Points 7 to 10 m apart on
  a line tell almost the same, so that whole lines go into one part of a split.
- heaton-satellite: land surface temperatures of Heaton et al. (2019), 105,569 training rows and 42,740 test rows. What
  clouds hid from everybody is dropped. The test rows are those of the published comparison.
"""

from __future__ import annotations

import lzma
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rtgp.datasets._dataset import Dataset
from rtgp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_KM_PER_DEGREE = 111.2  # of latitude; of longitude, times the cosine of the latitude
_METRES = 1000.0


def read_britain(path: Path) -> Dataset:
    """(east, north, height) in km -> the anomaly of the total field in nT. The year and the line are left out."""
    frame = _table(path, ("line_and_segment", "year", "longitude", "latitude", "height_m", "total_field_anomaly_nt"))
    return _survey("britain-magnetic", frame.drop_duplicates(), "height_m", latitude=54.0)


def read_osborne(path: Path) -> Dataset:
    """(east, north, height) in km -> the anomaly of the total field in nT; grouped by flight line."""
    frame = _table(
        path, ("flight_line", "longitude", "latitude", "height_orthometric_m", "total_field_anomaly_nt")
    ).drop_duplicates()
    return _survey("osborne-magnetic", frame, "height_orthometric_m", latitude=-22.0, groups="flight_line")


def read_heaton(path: Path) -> Dataset:
    """(longitude, latitude) in degrees -> temperature in degrees Celsius, with the test rows of the comparison."""
    frame = _table(path, ("Lon", "Lat", "MaskTemp", "TrueTemp"))
    frame = frame[frame["TrueTemp"].notna()]
    X = frame[["Lon", "Lat"]].to_numpy(dtype=np.float64)
    y, test = frame["TrueTemp"].to_numpy(dtype=np.float64), frame["MaskTemp"].isna().to_numpy()
    return Dataset(X, y, ("longitude", "latitude"), "temperature", "heaton-satellite", test_rows=test)


def _survey(name: str, frame: pd.DataFrame, height: str, latitude: float, groups: str | None = None) -> Dataset:
    """latitude: in the middle of the survey, at which a degree of longitude is converted."""
    east = frame["longitude"].to_numpy(dtype=np.float64) * (_KM_PER_DEGREE * math.cos(math.radians(latitude)))
    north = frame["latitude"].to_numpy(dtype=np.float64) * _KM_PER_DEGREE
    up = frame[height].to_numpy(dtype=np.float64) / _METRES
    y = frame["total_field_anomaly_nt"].to_numpy(dtype=np.float64)
    members = None if groups is None else np.unique(frame[groups].to_numpy(), return_inverse=True)[1]
    X = np.column_stack([east, north, up])
    return Dataset(X, y, ("east_km", "north_km", "height_km"), "anomaly_nt", name, groups=members)


READERS: dict[str, Callable[[Path], Dataset]] = {
    "britain-magnetic": read_britain,
    "osborne-magnetic": read_osborne,
    "heaton-satellite": read_heaton,
}


def _table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The columns of a CSV file with a header, compressed or not."""
    import pandas as pd

    try:
        frame = pd.read_csv(path, low_memory=False)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: not a readable CSV file ({error!s:.200}).") from error
    missing = [column for column in columns if column not in frame]
    if missing:
        raise InputError(f"{path}: expected the columns {', '.join(columns)}. There is no {', '.join(missing)}.")
    texts = [c for c in columns[1:] if not pd.api.types.is_numeric_dtype(frame[c])]
    if texts:
        raise InputError(f"{path}: column {texts[0]!r} holds text. Expected numbers.")
    return frame[list(columns)]
