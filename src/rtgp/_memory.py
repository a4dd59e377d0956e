"""Memory: how much is left, and an error with a remedy where it runs out."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rtgp.errors import OutOfMemoryError, RTGPError

if sys.platform != "win32":
    import resource

UNKNOWN = 4 * 2**30  # assumed where the system does not tell (outside Linux)

# How torch and its libraries say it, where they raise no class of their own.
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "ALLOC_FAILED", "bad allocation")


def available_memory() -> int:
    """Bytes that this process may still allocate: the system's, or what its own limit (ulimit -v) leaves."""
    try:
        # Not what is free but what could be: file caches, which fill the rest of every busy machine, give way.
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        limit = resource.getrlimit(resource.RLIMIT_AS)[0] if sys.platform != "win32" else -1
        if limit < 0:  # RLIM_INFINITY
            return free
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        return max(0, min(free, limit - taken))
    except (OSError, StopIteration, ValueError):
        return UNKNOWN


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, NumPy, Arrow or torch means that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


@contextmanager
def enough_memory(what: str, remedy: str) -> Iterator[None]:
    """Running out of memory in the body becomes an OutOfMemoryError that says what to do."""
    try:
        yield
    except RTGPError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        # A caller may try something smaller at once. What the failed calls held must be free by then.
        traceback.clear_frames(error.__traceback__)
        raise OutOfMemoryError(f"{what} does not fit into the memory that is left. {remedy}.") from error
