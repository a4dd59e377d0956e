"""NPZ files: `X` (n, d), and where known `y` (n,), `feature_names` and `target_name`.

The arrays are read by their header alone: their size must be that of the bytes behind it, and nothing is unpickled.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from rtgp.datasets._dataset import Array
from rtgp.datasets._limits import check_columns, check_expansion
from rtgp.errors import InputError

_KEYS = ("X", "y", "feature_names", "target_name")
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes
_LONGEST_NAME = 10_000
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# What the readers of zip archives and of array headers are known to raise.
_UNREADABLE = (
    EOFError, NotImplementedError, OSError, OverflowError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


def read_npz(path: Path) -> tuple[tuple[str, ...], Array]:
    """(names, values); y becomes the last column."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {key: members[key] for key in _KEYS if key in members}
            check_expansion(path, sum(info.file_size for info in wanted.values()))
            arrays = {key: _read(archive, info) for key, info in wanted.items()}
    except InputError:
        raise
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a readable NPZ file of plain arrays ({error!s:.200}).") from error
    if "X" not in arrays:
        some = ", ".join(f"{name!r:.40}" for name in sorted(members)[:10])
        raise InputError(f"{path}: no array 'X' (n, d) in it. Got {some or 'nothing'}.")
    X, y = arrays["X"], arrays.get("y")
    numeric = all(array.dtype.kind in "biuf" for array in (X, y) if array is not None)
    if not numeric or X.ndim != 2 or (y is not None and y.shape != X.shape[:1]):
        got = f"X {X.dtype} {X.shape}" + ("" if y is None else f", y {y.dtype} {y.shape}")
        raise InputError(f"{path}: expected numbers as X (n, d) and y (n,). Got {got}.")
    if X.size == 0:
        raise InputError(f"{path}: no rows of data, or no columns. Got X {X.shape}.")
    check_columns(path, X.shape[1])
    names = _words(path, arrays, "feature_names", X.shape[1], [f"x{i}" for i in range(1, X.shape[1] + 1)])
    if len(names) != X.shape[1]:
        raise InputError(f"{path}: {len(names)} feature names for the {X.shape[1]} columns of X.")
    if y is None:
        return tuple(names), X.astype(np.float64)
    (target,) = _words(path, arrays, "target_name", 1, ["y"])
    return (*names, target), np.column_stack([X, y]).astype(np.float64)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if info.compress_type not in _PLAIN:
        raise ValueError(f"{info.filename!r:.40} is packed in a way that NumPy does not write")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{info.filename!r:.40} is of version {version}")
        try:
            shape, by_columns, dtype = _HEADERS[version](file)
        except (MemoryError, RecursionError, SyntaxError, TokenError) as error:  # of Python's own parser
            raise ValueError(f"{info.filename!r:.40} has a header that makes no sense") from error
        if dtype.hasobject or dtype.kind not in "biufUS" or dtype.subdtype is not None:
            raise ValueError(f"{info.filename!r:.40} holds {dtype!s:.40}, not numbers or text")
        if any(size < 0 for size in shape):
            raise ValueError(f"{info.filename!r:.40} has the shape {shape}")
        size = math.prod(shape) * dtype.itemsize
        left = info.file_size - file.tell()
        if size != left:
            raise ValueError(f"{info.filename!r:.40} holds {left} bytes, and its header speaks of {size}")
        content = file.read()
    if len(content) != size:
        raise ValueError(f"{info.filename!r:.40} is cut short")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")


def _words(path: Path, arrays: dict[str, npt.NDArray[Any]], key: str, count: int, default: list[str]) -> list[str]:
    found = arrays.get(key)
    if found is None:
        return default
    if found.size != count:
        what = "feature names" if key == "feature_names" else "target names"
        raise InputError(f"{path}: {found.size} {what} for the {count} columns of {'X' if count != 1 else 'it'}.")
    if found.dtype.itemsize > _LONGEST_NAME:
        raise InputError(f"{path}: names of {found.dtype.itemsize:,} bytes. Expected at most {_LONGEST_NAME:,}.")
    return [str(word) for word in np.ravel(found)]
