"""Files that appear whole or not at all, folders that one process at a time writes to, and failures in words.

A file is written under another name, flushed to the disk and renamed: whenever the process dies or the disk is full,
what stood there before stays.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rtgp.errors import StorageError

if sys.platform != "win32":
    import fcntl

PART = ".part"  # how the name of a file ends while it is written
_POLL = 0.05  # seconds between two attempts at a lock

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` under `path`; an OSError leaves what was there."""
    write_in_order([(path, content)])


def write_text(path: Path, text: str) -> None:
    """Written beside `path` under another name, then renamed: what stood there stays until the new text is complete."""
    with writing(path.name, path.parent):
        write_whole(path, text.encode("utf-8"))


def write_in_order(files: Sequence[tuple[Path, bytes]], first_remove: Path | None = None) -> None:
    """Put several files of one folder in place, the last being the one that counts; all or none if the disk is full.

    Everything that takes space is done before anything is replaced. `first_remove` is unlinked in between: a file that
    would otherwise belong to the old content for a moment.
    """
    parts = [path.with_name(f".{path.name}.{os.getpid()}{PART}") for path, _ in files]
    try:
        for part, (_, content) in zip(parts, files, strict=True):
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        folder = files[-1][0].parent
        if first_remove is not None:
            first_remove.unlink(missing_ok=True)
            sync_folder(folder)
        for part, (path, _) in zip(parts, files, strict=True):
            os.replace(part, path)
            sync_folder(folder)  # in this order on the disk too
    except BaseException:
        for part in parts:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        raise


@contextmanager
def appended(path: Path) -> Iterator[BinaryIO]:
    """A file to write to piece by piece, which is under `path` once the body has ended, and not before; after an
    exception nothing is left of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the renaming itself survive a loss of power, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason(error: OSError) -> str:
    """What went wrong and what to do, in two sentences."""
    if error.errno in _FULL:
        return "there is no space left on the disk (or of the quota). Free some space, or name a place on another disk."
    if error.errno in _FORBIDDEN:
        return "it may not be written to (read-only, or no permission). Change that, or name another place."
    if error.errno == errno.EFBIG:
        return "the file would be larger than this system or its limits (ulimit -f) allow. Name another place."
    return f"{error.strerror or error}. Mend that, or name another place."


@contextmanager
def writing(what: str, place: str | Path) -> Iterator[None]:
    """An OSError in the body becomes a StorageError that names what was written where."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what} could not be written to {str(place)!r}: {reason(error)}") from error


class FolderLock:
    """A lock on a folder, held by one process at a time. The system takes it back when its holder dies.

    Where the file system knows no locks (some network drives, Windows) everybody gets it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def acquire(self, patience: float) -> bool:
        """Take the lock within `patience` seconds; whether that was possible. The folder must exist."""
        if sys.platform == "win32" or self._descriptor is not None:
            return True
        descriptor = os.open(self._folder, os.O_RDONLY)
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    os.close(descriptor)
                    return False
                time.sleep(_POLL)
                continue
            except OSError:
                os.close(descriptor)
                return True
            self._descriptor = descriptor
            return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
