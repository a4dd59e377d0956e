"""Checkpoints: a folder with the last two, each a safetensors file and a JSON file that seals it.

The JSON file is written last and holds the checksum of both, so a checkpoint exists as a whole or not at all, whenever
the process dies. Every file is written under another name, flushed to the disk and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from rtgp.training.errors import CheckpointError, CheckpointWarning
from rtgp.training.packing import pack, unpack

FORMAT = 1
_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{8})\.(json|safetensors)(\.part)?")


class CheckpointFolder:
    """Writes the state of one problem to a folder and reads it back."""

    def __init__(self, folder: str | os.PathLike[str], problem: dict[str, str]) -> None:
        self._folder = Path(folder)
        self._problem = problem
        self._good: list[int] = []  # steps of the checkpoints known to be whole, oldest first
        if self._folder.exists() and not self._folder.is_dir():
            raise CheckpointError(
                f"The 'checkpoint' must name a folder. {str(folder)!r} is a file: name another place."
            )

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after `step` steps; then remove all but the last two checkpoints."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        packed = pack(state, tensors)
        blob = safetensors.torch.save(tensors)
        body: dict[str, Any] = {
            "format": FORMAT,
            "step": step,
            "problem": self._problem,
            "tensors": _checksum(blob),
            "state": packed,
        }
        self._write(self._path(step, "safetensors"), blob)
        self._write(self._path(step, "json"), seal(body))
        before = [known for known in self._good if known != step]
        self._good = [*before[1 - _KEPT :], step]
        self._remove_all_but(self._good)

    def load(self) -> dict[str, Any] | None:
        """The state of the newest whole checkpoint; None where the folder holds none.

        A damaged one is passed over with a warning. It is an error if all are damaged, or if they are of another
        problem or of a newer format.
        """
        steps = sorted(self._steps(), reverse=True)
        problems = []
        for step in steps:
            try:
                body, tensors = self._read(step)
            except _DamagedError as error:
                problems.append(str(error))
                continue
            self._check_problem(body["problem"])
            state: dict[str, Any] = unpack(body["state"], tensors)
            self._good = [step]
            for problem in problems:
                warnings.warn(f"{problem} It is refused; training goes on from step {step}.", CheckpointWarning, 4)
            return state
        if problems:
            raise CheckpointError(
                f"No whole checkpoint is left in {self._folder}: {' '.join(problems)} "
                "Restore the files, or remove the folder to begin anew."
            )
        return None

    def _path(self, step: int, ending: str) -> Path:
        return self._folder / f"checkpoint-{step:08d}.{ending}"

    def _steps(self) -> set[int]:
        """Of the sealed checkpoints: those with a JSON file."""
        matches = (_NAME.fullmatch(path.name) for path in _files(self._folder))
        return {int(match[1]) for match in matches if match and match[2] == "json" and not match[3]}

    def _read(self, step: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        path = self._path(step, "json")
        try:
            content = path.read_bytes()
            body = json.loads(content)
            checksum = body.pop("checksum")
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise _DamagedError(f"{path.name} is cut short or damaged (no readable JSON).") from error
        # The checksum before the version: a flipped bit must not pass for a newer format.
        if checksum != _checksum(content.partition(b"\n")[2]):
            raise _DamagedError(f"{path.name} is damaged (its checksum does not fit its content).")
        if body["format"] > FORMAT:
            raise CheckpointError(
                f"{path} is of format {body['format']}; this version of rtgp reads up to {FORMAT}. "
                "Upgrade rtgp, or name another folder."
            )
        path = self._path(step, "safetensors")
        try:
            blob = path.read_bytes()
        except OSError as error:
            raise _DamagedError(f"{path.name} is missing or unreadable.") from error
        if _checksum(blob) != body["tensors"]:
            raise _DamagedError(f"{path.name} is cut short or damaged (its checksum does not fit its content).")
        return body, safetensors.torch.load(blob)

    def _check_problem(self, found: dict[str, str]) -> None:
        differing = [
            f"{key} (here {self._problem.get(key, 'absent')}, there {found.get(key, 'absent')})"
            for key in {**self._problem, **found}
            if self._problem.get(key) != found.get(key)
        ]
        if differing:
            raise CheckpointError(
                f"The checkpoint in {self._folder} is of another problem. What differs: {'; '.join(differing)}. "
                "Name another folder, remove this one, or ask for the same fit."
            )

    def _write(self, path: Path, content: bytes) -> None:
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(self._folder)

    def _remove_all_but(self, steps: Iterable[int]) -> None:
        kept = {path for step in steps for path in (self._path(step, "json"), self._path(step, "safetensors"))}
        # JSON files first: without it the tensors are no checkpoint.
        for path in sorted(_files(self._folder), key=lambda path: path.suffix != ".json"):
            if _NAME.fullmatch(path.name) and path not in kept:
                path.unlink(missing_ok=True)


class _DamagedError(Exception):
    """One checkpoint cannot be used; another may."""


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def seal(body: dict[str, Any]) -> bytes:
    """JSON whose first line is the checksum of the bytes after it."""
    rest = json.dumps(body, allow_nan=False).encode().removeprefix(b"{")
    return b'{"checksum": "' + _checksum(rest).encode() + b'",\n' + rest


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself survive a loss of power, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
