"""Model folders: `model.safetensors` for tensors, `model.json` for the rest; a format version, a checksum, no pickle.

`model.json` is the moment of truth: it is replaced last and names the tensors it belongs to, so that a save that is
killed leaves the model that was there before, or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load, save
from torch import Tensor

from rtgp._memory import available_memory
from rtgp._storage import PART, FolderLock, write_in_order, writing
from rtgp.errors import InputError, OutOfMemoryError

FORMAT = "rtgp-model"
# 2: models of SVGP and POE too; 3: several outputs, a noise between bounds. Those of earlier versions are read as they
# were, and what they can say is written as version 2.
VERSION, PLAIN_VERSION = 3, 2
DESCRIPTION_FILE = "model.json"
# Two names in turn, so that a model that is saved over another never writes into the file in use.
TENSOR_FILES = ("model.safetensors", "model.2.safetensors")
_LARGEST_DESCRIPTION = 256 * 2**20
_PATIENCE = 30.0  # seconds to wait for another process that saves to the same folder
_ATTEMPTS = 5  # at reading a model that another process replaces meanwhile
_NOT_FINITE = re.compile(r"float:(nan|inf|-inf)")


def write_folder(
    folder: str | Path, content: dict[str, Any], tensors: dict[str, Tensor], version: int = PLAIN_VERSION
) -> None:
    """Write a model into a folder, which is made where there is none; other files in it stay. version: of the format,
    the earliest that knows what is written."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder to save the model to. Got {str(folder)!r}, which is a file.")
    blob = save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})
    made, lock = _missing_folders(folder), FolderLock(folder)
    try:
        with writing("The model", folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not lock.acquire(_PATIENCE):
                raise InputError(f"Another process is saving a model to {str(folder)!r}. Name another folder.")
            _replace(folder, content, blob, version)
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    finally:
        lock.release()


def _replace(folder: Path, content: dict[str, Any], blob: bytes, version: int) -> None:
    in_use = _tensor_file_in_use(folder)
    free = [name for name in TENSOR_FILES if name != in_use]
    tensor_file = next((name for name in free if not (folder / name).exists()), free[-1])
    record = {
        "format": FORMAT,
        "version": version,
        "tensors": tensor_file,
        "tensor_bytes": len(blob),
        "content": _encode(content),
    }
    record["checksum"] = _checksum(record, blob)
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    _remove_parts(folder)
    write_in_order([(folder / tensor_file, blob), (folder / DESCRIPTION_FILE, text.encode())])
    if in_use is not None:
        (folder / in_use).unlink(missing_ok=True)


def _remove_parts(folder: Path) -> None:
    """What a save that was killed left behind; nobody else writes here now."""
    for name in (*TENSOR_FILES, DESCRIPTION_FILE):
        for part in folder.glob(f".{name}.*{PART}"):
            part.unlink(missing_ok=True)


def read_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_folder` wrote, checked before it is believed."""
    folder = Path(folder)
    for _ in range(_ATTEMPTS):
        text = _read_description(folder)
        try:
            return _read(folder, text)
        except InputError:
            if text == _read_description(folder):
                raise
            # Another process has replaced the model in between, and removed the tensors of the one before.
    raise InputError(f"The model in {str(folder)!r} is replaced all the time. Wait until that ends.")


def _read(folder: Path, text: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    record = _parse_description(folder, text)
    path = folder / _checked_tensor_file(folder, record)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.get("tensor_bytes"):
                raise damaged(folder, f"{path.name} has {size} bytes, expected {record.get('tensor_bytes')!r:.40}")
            if size > available_memory():
                raise OutOfMemoryError(
                    f"The model in {str(folder)!r} has {size / 2**30:.1f} GiB, which is more than the memory that is "
                    "left. Load it on a machine with more."
                )
            blob = file.read()
        if _checksum(record, blob) != record.get("checksum"):
            raise damaged(folder, "the checksum does not fit the content")
        content = _decode(record.get("content"))
    except (OSError, RecursionError) as error:
        raise damaged(folder, f"{path.name} cannot be read ({error})") from error
    try:
        tensors = load(blob)
    except (safetensors.SafetensorError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(folder, f"{path.name} cannot be read ({type(error).__name__}: {error!s:.200})") from error
    if not isinstance(content, dict):
        raise damaged(folder, "its description is no table")
    # Copies: memory that came from a file may be aligned otherwise, which may change the last bit of a product.
    return content, {name: tensor.clone() for name, tensor in tensors.items()}


def _read_description(folder: Path) -> bytes:
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        what = "no such folder" if not folder.is_dir() else f"it has no {DESCRIPTION_FILE}"
        raise InputError(
            f"{str(folder)!r} is not a saved model: {what}. "
            "Expected a folder written by GPRegressor.save or `rtgp fit`."
        )
    if path.stat().st_size > _LARGEST_DESCRIPTION:
        raise damaged(folder, f"{path.name} is larger than any description can be")
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(folder, f"{path.name} cannot be read ({error})") from error


def _parse_description(folder: Path, text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(folder, f"{DESCRIPTION_FILE} is not JSON ({error!s:.200})") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(
            f"{str(folder)!r} is not a saved model: its {DESCRIPTION_FILE} was written by another program. "
            "Expected a folder written by GPRegressor.save or `rtgp fit`."
        )
    version = record.get("version")
    if isinstance(version, int) and version > VERSION:
        raise InputError(
            f"The model in {str(folder)!r} has format version {version}; this rtgp reads up to {VERSION}. Update rtgp."
        )
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise damaged(folder, f"format version {version!r:.40}")
    return record


def _checked_tensor_file(folder: Path, record: dict[str, Any]) -> str:
    name = record.get("tensors")
    if name not in TENSOR_FILES:  # also: no path that leads out of the folder
        raise damaged(folder, f"it names {name!r:.80} as its file of tensors")
    if not (folder / name).is_file():
        raise damaged(folder, f"{name} is missing")
    return str(name)


def damaged(folder: Path, what: str) -> InputError:
    return InputError(f"The model in {str(folder)!r} is damaged: {what}. Restore the folder from a copy, or fit again.")


def _checksum(record: dict[str, Any], blob: bytes) -> str:
    """sha256 over the description (all of it but the checksum) and the file of tensors."""
    described = {key: value for key, value in record.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, allow_nan=True).encode())
    digest.update(blob)
    return digest.hexdigest()


def _encode(value: Any) -> Any:
    """JSON knows no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float:{value}"
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, str) and _NOT_FINITE.fullmatch(value):
        return float(value.removeprefix("float:"))
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return value


def _missing_folders(folder: Path) -> list[Path]:
    """The folders that saving will make, innermost first: to be removed if it fails."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _tensor_file_in_use(folder: Path) -> str | None:
    """That of the model that is there already, which may be a damaged one; never a file of another program."""
    path = folder / DESCRIPTION_FILE
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] == FORMAT:
            return str(record["tensors"]) if record["tensors"] in TENSOR_FILES else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise InputError(
        f"Expected a new folder, or one with a model to replace. {str(path)!r} is of another program, or damaged: "
        "choose another folder, or remove that file."
    )
