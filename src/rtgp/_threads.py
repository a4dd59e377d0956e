"""Many small pieces of work on the threads of a CPU.

torch splits each operation over its threads. On blocks of a few dozen rows these threads wait more than they work. Here
each thread takes whole pieces instead, and torch uses one thread within each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import torch

Result = TypeVar("Result")

# Fixed, so that sums over parts have the same order, and the same bits, on any number of threads.
PARTS = 16


def parts_of(count: int, parts: int = PARTS) -> list[slice]:
    """At most `parts` ranges of about the same length that cover range(count)."""
    edges = [count * part // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges) if stop > start]


def in_threads(work: Callable[[slice], Result], count: int, parallel: bool) -> list[Result]:
    """work(part) for parts of range(count), in their order. Without `parallel` there is one part, in this thread.

    For work without autograd on a CPU. A GPU has threads of its own.
    """
    if not parallel:
        return [work(slice(0, count))]
    parts, threads = parts_of(count), torch.get_num_threads()
    if threads == 1 or len(parts) == 1:
        return [work(part) for part in parts]

    def alone(part: slice) -> Result:
        with torch.no_grad():  # each thread has a switch of its own
            return work(part)

    with _single_threaded_workers(min(threads, len(parts))) as pool:
        return list(pool.map(alone, parts))


def sum_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """In the order of the parts; the first is overwritten."""
    total, *rest = parts
    for part in rest:
        total += part
    return total


@contextmanager
def _single_threaded_workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads within which torch uses one thread each. The caller's own number is what it was."""
    threads = torch.get_num_threads()
    try:
        # torch keeps the number for each thread, and for threads that are yet to begin: hence the second call.
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)
