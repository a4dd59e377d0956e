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
from safetensors.torch import load_file, save_file
from torch import Tensor

from rtgp.errors import InputError

FORMAT = "rtgp-model"
VERSION = 2  # 2: models of SVGP and POE too; those of version 1 are read as they were
DESCRIPTION_FILE = "model.json"
# Two names in turn, so that a model that is saved over another never writes into the file in use.
TENSOR_FILES = ("model.safetensors", "model.2.safetensors")
_LARGEST_DESCRIPTION = 256 * 2**20
_CHUNK = 2**20
_NOT_FINITE = re.compile(r"float:(nan|inf|-inf)")


def write_folder(folder: str | Path, content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a model into a folder, which is made where there is none; other files in it stay."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder to save the model to. Got {str(folder)!r}, which is a file.")
    made = _missing_folders(folder)
    in_use = _tensor_file_in_use(folder)
    free = [name for name in TENSOR_FILES if name != in_use]
    tensor_file = next((name for name in free if not (folder / name).exists()), free[-1])
    parts = [folder / f".{name}.{os.getpid()}.part" for name in (tensor_file, DESCRIPTION_FILE)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, parts[0])
        record = {
            "format": FORMAT,
            "version": VERSION,
            "tensors": tensor_file,
            "tensor_bytes": parts[0].stat().st_size,
            "content": _encode(content),
        }
        record["checksum"] = _checksum(record, parts[0])
        parts[1].write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        parts[0].chmod(parts[1].stat().st_mode)  # safetensors makes files that only their owner may read
        for part in parts:
            _flush_to_disk(part)
        for part, name in zip(parts, (tensor_file, DESCRIPTION_FILE), strict=True):
            os.replace(part, folder / name)
    except BaseException as error:
        for part in parts:
            part.unlink(missing_ok=True)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise InputError(f"The model could not be saved to {str(folder)!r}: {error}.") from error
        raise
    if in_use is not None:
        (folder / in_use).unlink(missing_ok=True)


def read_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_folder` wrote, checked before it is believed."""
    folder = Path(folder)
    record = _read_description(folder)
    path = folder / _checked_tensor_file(folder, record)
    size = path.stat().st_size
    if size != record.get("tensor_bytes"):
        raise damaged(folder, f"{path.name} has {size} bytes, expected {record.get('tensor_bytes')!r:.40}")
    try:
        if _checksum(record, path) != record.get("checksum"):
            raise damaged(folder, "the checksum does not fit the content")
        content, tensors = _decode(record.get("content")), load_file(path)
    except (safetensors.SafetensorError, OSError, RecursionError) as error:
        raise damaged(folder, f"{path.name} cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise damaged(folder, "its description is no table")
    # Copies: memory that came from a file may be aligned otherwise, which may change the last bit of a product.
    return content, {name: tensor.clone() for name, tensor in tensors.items()}


def _read_description(folder: Path) -> dict[str, Any]:
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
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise damaged(folder, f"{path.name} is not JSON ({error})") from error
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


def _checksum(record: dict[str, Any], tensors: Path) -> str:
    """sha256 over the description (all of it but the checksum) and the file of tensors."""
    described = {key: value for key, value in record.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, allow_nan=True).encode())
    with tensors.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
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


def _flush_to_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
