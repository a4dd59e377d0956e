"""Whole files, locks on folders, and what went wrong in words."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from rtgp import _storage as storage
from rtgp._storage import FolderLock, reason, write_in_order, write_whole, writing
from rtgp.errors import StorageError


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left on the disk"),
        (errno.EDQUOT, "of the quota"),
        (errno.EROFS, "read-only, or no permission"),
        (errno.EACCES, "Change that, or name another place"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_every_reason_names_a_remedy(number: int, words: str, tmp_path: Path) -> None:
    error = OSError(number, os.strerror(number))
    assert words in reason(error)
    assert "name" in reason(error).lower()
    with (
        pytest.raises(StorageError, match="The table could not be written to") as caught,
        writing("The table", tmp_path),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_files_are_replaced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = tmp_path / "tensors", tmp_path / "seal"
    write_in_order([(first, b"1"), (last, b"1")])
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append((Path(b).name, last.exists())), replace(a, b)))
    write_in_order([(first, b"2"), (last, b"2")], first_remove=last)
    assert seen == [("tensors", False), ("seal", False)]  # no seal while the tensors are of another
    assert (first.read_bytes(), last.read_bytes()) == (b"2", b"2")
    assert sorted(os.listdir(tmp_path)) == ["seal", "tensors"]


def test_the_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"x")
    (tmp_path / "b").write_bytes(b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks of POSIX")
def test_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.acquire(0.0)
    assert first.acquire(0.0)  # held already
    assert not second.acquire(0.1)
    first.release()
    assert second.acquire(0.0)

    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(storage.fcntl, "flock", unknown)
    assert first.acquire(0.0)  # a file system without locks: everybody gets it
    second.release()
    first.release()
