"""Checkpoints: a folder with the last two, each a safetensors file and a JSON file that seals it.

The JSON file is written last and holds the checksum of both, so a checkpoint exists as a whole or not at all, whenever
the process dies. One process at a time trains from a folder: two would remove each other's checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import safetensors.torch
import torch
from torch import Tensor

from rtgp._memory import available_memory, is_out_of_memory
from rtgp._storage import PART, FolderLock, reason, write_in_order
from rtgp.errors import RTGPError
from rtgp.training._errors import CheckpointError, CheckpointWarning
from rtgp.training._packing import pack, unpack

FORMAT = 1
_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{8})\.(json|safetensors)")
_PARTS = re.compile(rf"\.?{_NAME.pattern}(\.\d+)?{re.escape(PART)}")
_PATIENCE = 2.0  # seconds to wait for another process, which may be about to end
_LARGEST_JSON = 2**30
# What made-up content, of which the checksum fits all the same, may lead to.
_SENSELESS = (
    ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


class CheckpointFolder:
    """Writes the state of one problem to a folder and reads it back. `with` gives the folder free at the end."""

    def __init__(self, folder: str | os.PathLike[str], problem: dict[str, str]) -> None:
        self._folder = Path(folder)
        self._problem = problem
        self._good: list[int] = []  # steps of the checkpoints known to be whole, oldest first
        self._lock = FolderLock(self._folder)
        self._made = False
        if self._folder.exists() and not self._folder.is_dir():
            raise CheckpointError(
                f"The 'checkpoint' must name a folder. {str(folder)!r} is a file: name another place."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made:
            with suppress(OSError):  # it holds something, as it should
                self._folder.rmdir()
        self._lock.release()

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after `step` steps, then remove all but the last two checkpoints.

        Where it cannot be written, that is an error if there is none to go on from. Otherwise the training is worth
        more than a second checkpoint, and a warning tells.
        """
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
        before = [known for known in self._good if known != step]
        try:
            self._take()
            sealed = self._path(step, "json")
            write_in_order([(self._path(step, "safetensors"), blob), (sealed, seal(body))], first_remove=sealed)
        except OSError as error:
            self._complain(step, error)
            return
        self._good = [*before[1 - _KEPT :], step]
        self._remove_all_but(self._good)

    def load(self, card: torch.device | None = None) -> dict[str, Any] | None:
        """The state of the newest whole checkpoint; None where the folder holds none.

        What was on a card goes to `card`, which may be the CPU.

        A damaged checkpoint is passed over with a warning. It is an error if all are damaged, if they are of another
        problem or of a newer format, or if another process trains from them.
        """
        try:
            self._take()
        except OSError as error:
            raise CheckpointError(f"The folder {str(self._folder)!r} cannot be made: {reason(error)}") from error
        steps = sorted(self._steps(), reverse=True)
        problems = []
        for step in steps:
            try:
                state = self._read(step, card)
            except _DamagedError as error:
                problems.append(str(error))
                continue
            self._good = [step]
            for problem in problems:
                warnings.warn(f"{problem} It is refused; training goes on from step {step}.", CheckpointWarning, 4)
            return state
        if problems:
            raise CheckpointError(
                f"No whole checkpoint is left in {self._folder}: {' '.join(problems)} "
                "Restore the files, or remove the folder to start again."
            )
        return None

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """A context for work with loaded content. Its checksum fits, but it need not make sense for the problem."""
        try:
            yield
        except RTGPError:
            raise
        except _SENSELESS as error:
            if is_out_of_memory(error):
                raise
            raise CheckpointError(
                f"The checkpoint in {self._folder} makes no sense ({_words(error)}). "
                "Restore the files, or remove the folder to start again."
            ) from error

    def _take(self) -> None:
        """Make the folder where there is none, and keep other processes out of it."""
        self._made = self._made or not self._folder.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.acquire(_PATIENCE):
            raise CheckpointError(
                f"The checkpoint in {str(self._folder)!r} is in use: another process trains from it. "
                "Wait until it ends or stop it, or name another folder."
            )

    def _complain(self, step: int, error: OSError) -> None:
        words = f"The checkpoint of step {step} could not be written to {str(self._folder)!r}: {reason(error)}"
        if not self._good:
            raise CheckpointError(words) from error
        warnings.warn(
            f"{words} Training goes on and will try again; until then an interrupted run goes on from step "
            f"{self._good[-1]}.",
            CheckpointWarning,
            stacklevel=4,
        )

    def _path(self, step: int, ending: str) -> Path:
        return self._folder / f"checkpoint-{step:08d}.{ending}"

    def _steps(self) -> set[int]:
        """Of the sealed checkpoints: those with a JSON file."""
        matches = (_NAME.fullmatch(path.name) for path in _files(self._folder))
        return {int(match[1]) for match in matches if match and match[2] == "json"}

    def _read(self, step: int, card: torch.device | None) -> dict[str, Any]:
        path = self._path(step, "json")
        content = _bytes(path, _LARGEST_JSON)
        try:
            body = json.loads(content)
            checksum = body.pop("checksum")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise _DamagedError(f"{path.name} is cut short or damaged (no readable JSON).") from error
        # The checksum before the version: a flipped bit must not pass for a newer format.
        if checksum != _checksum(content.partition(b"\n")[2]):
            raise _DamagedError(f"{path.name} is damaged (its checksum does not fit its content).")
        found, problem = body.get("format"), body.get("problem")
        if isinstance(found, int) and found > FORMAT:
            raise CheckpointError(
                f"{path} is of format {found}; this version of rtgp reads up to {FORMAT}. "
                "Upgrade rtgp, or name another folder."
            )
        if not isinstance(problem, dict) or found != FORMAT:
            raise _DamagedError(f"{path.name} is damaged (no checkpoint of a problem).")
        self._check_problem(problem)
        tensors = self._path(step, "safetensors")
        blob = _bytes(tensors, available_memory())
        if _checksum(blob) != body.get("tensors"):
            raise _DamagedError(f"{tensors.name} is cut short or damaged (its checksum does not fit its content).")
        try:
            state = unpack(body.get("state"), safetensors.torch.load(blob), card)
            if not isinstance(state, dict):
                raise _DamagedError(f"{path.name} is damaged (no table of a state).")
            return state
        except (*_SENSELESS, safetensors.SafetensorError) as error:
            if is_out_of_memory(error):
                raise
            raise _DamagedError(f"{path.name} makes no sense here ({_words(error)}).") from error

    def _check_problem(self, found: dict[str, Any]) -> None:
        differing = [
            f"{key:.80} (here {self._problem.get(key, 'absent')}, there {found.get(key, 'absent')!s:.2000})"
            for key in {**self._problem, **found}
            if self._problem.get(key) != found.get(key)
        ]
        if differing:
            raise CheckpointError(
                f"The checkpoint in {self._folder} is of another problem. What differs: {'; '.join(differing[:20])}. "
                "Name another folder, remove this one, or ask for the same fit."
            )

    def _remove_all_but(self, steps: Iterable[int]) -> None:
        kept = {path for step in steps for path in (self._path(step, "json"), self._path(step, "safetensors"))}
        # JSON files first: without it the tensors are no checkpoint.
        for path in sorted(_files(self._folder), key=lambda path: path.suffix != ".json"):
            if (_NAME.fullmatch(path.name) or _PARTS.fullmatch(path.name)) and path not in kept:
                path.unlink(missing_ok=True)


class _DamagedError(Exception):
    """One checkpoint cannot be used; another may."""


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _bytes(path: Path, most: int) -> bytes:
    """The content of a plain file that is no larger than `most`: a sparse one may claim any size."""
    try:
        if not path.is_file():
            raise _DamagedError(f"{path.name} is missing or no file.")
        if path.stat().st_size > most:
            raise _DamagedError(f"{path.name} is too large to be read ({path.stat().st_size / 2**30:.1f} GiB).")
        return path.read_bytes()
    except OSError as error:
        raise _DamagedError(f"{path.name} is unreadable ({error.strerror}).") from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error!s:.200}"


def seal(body: dict[str, Any]) -> bytes:
    """JSON whose first line is the checksum of the bytes after it."""
    rest = json.dumps(body, allow_nan=False).encode().removeprefix(b"{")
    return b'{"checksum": "' + _checksum(rest).encode() + b'",\n' + rest


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
