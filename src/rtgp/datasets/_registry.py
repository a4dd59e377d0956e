"""The named data sets: where each file is looked for, and how its columns are read."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rtgp._extras import needs
from rtgp.datasets._dataset import Dataset
from rtgp.datasets._download import download
from rtgp.datasets._spatial import READERS
from rtgp.datasets._tables import read_table
from rtgp.errors import InputError, SettingError


@dataclass(frozen=True)
class Source:
    """One file that can serve a named set: the last column is the target, all others are inputs."""

    file: str
    columns: tuple[str, ...] = ()  # () keeps those of the file, or x1 ... xd and y
    header: bool = False
    url: str | None = None
    sha256: str | None = None


def _plain(name: str) -> tuple[Source, ...]:
    return (Source(f"{name}.csv.gz"), Source(f"{name}.csv"))


# Worth knowing: two thirds of the rows of both KEGG sets are duplicates; elevators has columns of variance below 1e-10
# and keggundirected a constant one; the inputs of bike contain the parts of its target; pol's target has 11 values.
_SETS: dict[str, tuple[Source, ...]] = {
    "pol": _plain("pol"),
    "elevators": _plain("elevators"),
    "bike": _plain("bike"),
    "kin40k": _plain("kin40k"),
    "protein": _plain("protein"),
    "keggdirected": _plain("keggdirected"),
    "keggundirected": _plain("keggundirected"),
    "3droad": (
        *_plain("3droad"),
        Source(  # the benchmark takes the OSM id as an input too
            "3D_spatial_network.txt",
            columns=("osm_id", "longitude", "latitude", "altitude"),
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/00246/3D_spatial_network.txt",
            sha256="d83303a61dc3c9d0842df2c7e5b496ec29aafa2080a430253acb8411cae789dc",
        ),
    ),
    "precipitation": (Source("precipitation.csv.gz", header=True), Source("precipitation.csv", header=True)),
    **{name: tuple(Source(f"{name}.csv{packed}") for packed in (".xz", ".gz", "")) for name in READERS},
}
_AIRPORTS = "us-airports"


def names() -> tuple[str, ...]:
    """The names that `load` knows.

    Returns
    -------
    tuple of str
        One for each named data set.

    Examples
    --------
    >>> from rtgp import datasets
    >>> "us-airports" in datasets.names()
    True
    """
    return (*_SETS, _AIRPORTS)


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """A named data set, in original units.

    Its file is looked for in `data_dir`, in the folder named by the environment variable RTGP_DATA, and in the user's
    cache. Where a public archive has it, it is then downloaded into the cache. "us-airports" needs no file, but the
    extra `rtgp[data]`.

    "britain-magnetic", "osborne-magnetic" and "heaton-satellite" are cleaned as `rtgp.datasets._spatial` says. The
    second is split by flight line, the third by the test rows of the published comparison.

    Parameters
    ----------
    name : str
        One of `names()`.
    data_dir : path, optional
        The folder to look in first.

    Returns
    -------
    Dataset
        Inputs, target and their names.

    Raises
    ------
    SettingError
        If the name is unknown.
    InputError
        If the file is not found, or is no table of numbers.

    Examples
    --------
    >>> from rtgp import datasets
    >>> datasets.load("us-airports").feature_names
    ('longitude', 'latitude')
    """
    if name == _AIRPORTS:
        return _us_airports()
    if name not in _SETS:
        raise SettingError(f"The 'name' of a data set must be one of {', '.join(names())}. Got {name!r}.")
    folders = _folders(data_dir)
    for folder in folders:
        for source in _SETS[name]:
            if (folder / source.file).is_file():
                return _read(name, source, folder / source.file)
    for source in _SETS[name]:
        if source.url and source.sha256:
            path = cache_dir() / source.file
            download(source.url, source.sha256, path)
            return _read(name, source, path)
    files = " or ".join(source.file for source in _SETS[name])
    raise InputError(
        f"data set {name!r}: looked for {files} in {', '.join(map(str, folders))}. Not found, and there is no public "
        "archive to download it from. Put the file (comma-separated numbers, the target last) into one of these "
        "folders, or name its folder by data_dir= or by the environment variable RTGP_DATA."
    )


def cache_dir() -> Path:
    """The user's cache folder for data, by the custom of the operating system; it need not exist."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rtgp"


def _folders(data_dir: str | Path | None) -> list[Path]:
    if data_dir is not None and not Path(data_dir).is_dir():
        raise InputError(f"The 'data_dir' must be an existing folder. Got {str(data_dir)!r}.")
    named = (data_dir, os.environ.get("RTGP_DATA"), cache_dir())
    return [Path(folder) for folder in named if folder]


def _read(name: str, source: Source, path: Path) -> Dataset:
    if name in READERS:
        return READERS[name](path)
    table = read_table(path, header=source.header)
    columns = source.columns
    if not columns:
        columns = table.columns if source.header else (*(f"x{i}" for i in range(1, len(table.columns))), "y")
    if len(columns) != len(table.columns):
        raise InputError(f"{path}: expected the columns {', '.join(columns)}. Got {len(table.columns)} columns.")
    if len(columns) < 2:
        raise InputError(f"{path}: expected input columns and the target. Got one column.")
    return Dataset(table.values[:, :-1].copy(), table.values[:, -1].copy(), columns[:-1], columns[-1], name)


def _us_airports() -> Dataset:
    """(longitude, latitude) in degrees -> elevation in feet of the airports of the contiguous United States."""
    with needs("data", f"The data set {_AIRPORTS!r}"):
        import airportsdata

    rows = np.array(
        [
            (airport["lon"], airport["lat"], airport["elevation"])
            for airport in airportsdata.load("LID").values()
            if airport["country"] == "US"
            and -125 < airport["lon"] < -66  # leaves out Alaska, Hawaii and the Caribbean
            and 24 < airport["lat"] < 50
            and airport["elevation"] != 0  # sea level or a missing value: which, cannot be told
        ]
    )
    return Dataset(rows[:, :2].copy(), rows[:, 2].copy(), ("longitude", "latitude"), "elevation", _AIRPORTS)
