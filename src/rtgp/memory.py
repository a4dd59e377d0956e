"""Memory: how much is left, and running out of it in words."""

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

_ITERATIVE = (
    "Take operator='tiled', which never stores the kernel matrix, as in rtgp.{name}(operator='tiled'); a smaller "
    "preconditioner, fewer probes and dtype='float32' need less too"
)
_REMEDIES = {
    "Cholesky": "Cholesky keeps two matrices of {n:,} x {n:,} numbers, {matrices:.1f} GiB. Take method='rr-cg', which "
    "aims at the same optimum in memory that grows as n",
    "CG": _ITERATIVE,
    "RRCG": _ITERATIVE,
    "RFF": "Take fewer features, as in rtgp.RFF(features=...), or method='rr-cg'",
    "SSRFF": "Its last term is as large as Cholesky's, {matrices:.1f} GiB: take method='rr-cg'",
    "SVGP": "Take fewer inducing points, as in rtgp.SVGP(inducing=...)",
    "POE": "Take smaller experts, as in rtgp.POE(expert_size=...)",
    "SGGP": "Take fewer neighbours, as in rtgp.SGGP(neighbours=...)",
    "Vecchia": "Take fewer neighbours, as in rtgp.Vecchia(neighbours=...)",
}


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
        # Whoever catches this may try something smaller at once: what the calls that failed held must be free by then.
        traceback.clear_frames(error.__traceback__)
        raise OutOfMemoryError(f"{what} does not fit into the memory that is left. {remedy}.") from error


def remedy_for(method: object, n: int, device: str = "cpu") -> str:
    """What takes less memory than `method` on n points."""
    name = type(method).__name__
    words = _REMEDIES.get(name, "Take fewer points").format(name=name, n=n, matrices=2 * 8 * n * n / 2**30)
    return f"{words}; or train on the CPU" if device.startswith("cuda") else words
