"""Real processes on this machine that run a function together, one thread each.

They are forked from a server that has loaded the libraries, so that a group of ranks takes a fraction of a second to
start. The functions must be importable: they stand in `cases.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil
import torch

from waiting import PATIENCE

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["distributed.cases"])
# Seconds that the others have to say why they end. A silent rank is named after 3.5 (`rtgp.distributed._watch`), and a
# loaded machine may be late.
_GRACE = 12.0


def _start_server() -> None:
    """The server is told of this process's path too late for what it loads first: here by the environment."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), before]))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def free_port() -> int:
    """Below the ports that the system gives out by itself, where there are some: one of those could be another
    connection's by the time a rank listens on it."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(given.read_text().split()[0]) if given.exists() else 32768
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(10000, lowest) if lowest > 12000 else 0
        with socket.socket() as asked:
            try:
                asked.bind(("127.0.0.1", port))
            except OSError:  # somebody listens there
                continue
            return int(asked.getsockname()[1])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _one(
    rank: int, size: int, port: int, timeout: float, function: Callable[..., Any], args: Any, answer: Connection
) -> None:
    os.environ.update(environment(rank, size, port))
    torch.set_num_threads(1)
    from rtgp import distributed

    def on_silence(words: str) -> None:
        answer.send((False, words))
        os._exit(3)

    try:
        distributed.start("gloo", timeout, on_silence)
        result = function(*args)
    except BaseException as error:
        answer.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        distributed.stop(f"{type(error).__name__}: {error}")
    else:
        answer.send((True, result))
        distributed.stop()


def _is_stopped(pid: int | None) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:  # it ended: its pipe will say so
        return False


def outcomes(
    size: int, function: Callable[..., Any], *args: Any, timeout: float = 300.0, limit: float = PATIENCE
) -> list[tuple[bool, Any]]:
    """(True, result) or (False, error in words) of each rank; (False, exit code) of one that ended without a word.

    As torchrun does, the others are ended, after `_GRACE` seconds, once one has failed.
    """
    _start_server()
    port = free_port()
    processes, ends = [], []
    for rank in range(size):
        ours, theirs = _context.Pipe()
        process = _context.Process(target=_one, args=(rank, size, port, timeout, function, args, theirs))
        process.start()
        theirs.close()
        processes.append(process)
        ends.append(ours)
    found: dict[int, tuple[bool, Any]] = {}
    left = dict(zip(ends, range(size), strict=True))
    while left:
        failed = any(not good for good, _ in found.values())
        hopeless = all(_is_stopped(processes[rank].pid) for rank in left.values())
        ready = wait(list(left), (0.0 if hopeless else _GRACE) if failed else limit)
        if not ready:
            assert failed, f"ranks {sorted(left.values())} said nothing for {limit} s"
            for rank in left.values():
                processes[rank].kill()
            continue
        for end in ready:
            rank = left.pop(end)
            try:
                found[rank] = end.recv()
            except EOFError:
                processes[rank].join(10.0)
                found[rank] = (False, processes[rank].exitcode)
    for process in processes:
        process.join(30.0)
        if process.is_alive():
            process.kill()
    return [found[rank] for rank in range(size)]


def run(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """The result of each rank."""
    found = outcomes(size, function, *args)
    for rank, (good, result) in enumerate(found):
        assert good, f"rank {rank}: {result}"
    return [result for _, result in found]
