"""How large a table may be: every size that a file claims is held against the file before it is believed."""

from __future__ import annotations

from pathlib import Path

from rtgp._memory import available_memory
from rtgp.errors import InputError, OutOfMemoryError

MOST_COLUMNS = 100_000
_ALWAYS = 64 * 2**20  # bytes: so much may come out of a file of any size
_RATIO = 100  # beyond that no table of numbers is compressed; bombs reach 1,000 (gzip) and more


def check_size(path: Path) -> None:
    """A file, perhaps a sparse one, that is larger than the memory."""
    size, left = path.stat().st_size, available_memory()
    if size > left:
        raise OutOfMemoryError(
            f"{path}: the file has {size / 2**30:.1f} GiB, and {left / 2**30:.1f} GiB of memory are left. "
            "Read fewer rows or columns, or take a machine with more memory."
        )


def most_bytes(path: Path) -> int:
    """That may come out of a compressed file."""
    return max(_ALWAYS, _RATIO * path.stat().st_size)


def check_expansion(path: Path, size: int) -> None:
    """Bytes that the file says it holds, against its own size."""
    if not 0 <= size <= most_bytes(path):
        raise expands(path)


def expands(path: Path) -> InputError:
    return InputError(
        f"{path}: more than {_RATIO} times as large as its file when it is unpacked, which no table of numbers is. "
        "If you trust it, unpack it yourself or write it as a plain '.csv'."
    )


def check_columns(path: Path, count: int) -> None:
    if count > MOST_COLUMNS:
        raise InputError(f"{path}: {count:,} columns. Expected at most {MOST_COLUMNS:,}.")
