"""Many small jobs of two ranks that each leave as a program does, through the end of the interpreter.

    python ending.py WAYS JOBS FOLDER

The ranks are forked from a process that has loaded the libraries, which takes a tenth of the time of starting them. In
every job one rank has a lower priority, as on a machine that is busy with something else. Prints as JSON, for each
job and rank, the exit code and what was written to the standard error.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from pathlib import Path

import torch

from distributed.ranks import environment, free_port
from rtgp import distributed
from rtgp.distributed import RankError

SIZE = 2
kept: list[object] = []  # until the interpreter clears its modules
GROUP_THREADS = ("gloo", "tcpstore", "rtgp-watch")


def group_threads() -> list[str]:
    """Names of this process's threads that belong to a process group."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    names += [thread.name for thread in threading.enumerate()]
    return [name for name in names if any(part in name for part in GROUP_THREADS)]


def look_for_threads() -> None:
    """At the very end: whether one of these then takes the interpreter's lock is chance, that it is there is not."""
    left = group_threads()
    if left:
        sys.stderr.write(f"threads that are left: {left}\n")


def work(way: str, rank: int) -> None:
    atexit.register(look_for_threads)  # what is registered later is called earlier
    group = distributed.start("gloo", 30.0)
    kept.append(group)  # as a model may hold it
    for k in range(5):
        group.sum(torch.ones(3))
        group.objects(k)
    if way == "stop":
        distributed.stop()
    elif way == "exit":
        sys.exit(0)
    elif way == "error":
        raise ValueError("an error of every rank")
    elif way == "error of one":
        if rank == 1:
            raise ValueError("an error of rank 1")
        group.objects(rank)
    elif way == "error of the first":
        if rank == 0:
            raise ValueError("an error of rank 0")
        group.objects(rank)
    elif way == "kept error":
        if rank == 0:
            distributed.stop("it has had enough", alone=True)
            return
        try:
            group.objects(rank)
        except RankError as error:
            kept.append(error)  # and with it the frames of the operation that failed
        distributed.stop()
    elif way == "fork":
        child = os.fork()
        if child == 0:
            sys.exit(0)  # a child has the group in its memory, but not its threads
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        group.objects(rank)
    # "never": the program just ends


def job(way: str, number: int, folder: Path) -> list[tuple[int, str]]:
    """Exit code and words of each rank; nothing in a rank, whose program is to end."""
    port = free_port()
    children = []
    for rank in range(SIZE):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(folder / f"{number}-{rank}", os.O_WRONLY | os.O_CREAT), 2)
            if rank == number % SIZE:
                os.nice(5)
            os.environ.update(environment(rank, SIZE, port))
            work(way, rank)
            return []
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return [(code, (folder / f"{number}-{rank}").read_text()) for rank, code in enumerate(codes)]


def main() -> None:
    ways, jobs, folder = sys.argv[1].split(","), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    found = []
    for number in range(jobs):
        one = job(ways[number % len(ways)], number, folder)
        if not one:
            return
        found.append(one)
    print(json.dumps(found))  # noqa: T201


main()
