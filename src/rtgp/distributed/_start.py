"""From the environment that torchrun sets to a group of ranks."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from rtgp.distributed._errors import RankError
from rtgp.distributed._group import Group
from rtgp.distributed._watch import Watch
from rtgp.errors import SettingError

_log = logging.getLogger("rtgp")
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SPARE = 60.0  # seconds by which torch's own time-out is longer: ours can say which rank it was
TIMEOUT = 600.0

# Like torch's own default process group, which it stands for: one for each process.
_world: list[Group] = []


def launched() -> bool:
    """Whether torchrun, or something that sets the same variables, started this process.

    Returns
    -------
    bool
        True if all the variables are there.

    Examples
    --------
    >>> from rtgp import distributed
    >>> distributed.launched()
    False
    """
    return all(os.environ.get(name) for name in _VARIABLES)


def active() -> bool:
    """Whether `start` has been called.

    Returns
    -------
    bool
        True until `stop` is called.

    Examples
    --------
    >>> from rtgp import distributed
    >>> distributed.active()
    False
    """
    return bool(_world)


def world() -> Group:
    """The group that `start` made.

    Returns
    -------
    Group
        The ranks.

    Raises
    ------
    SettingError
        If there is none.

    Examples
    --------
    >>> from rtgp import distributed
    >>> distributed.world()
    Traceback (most recent call last):
        ...
    rtgp.errors.SettingError: operator='sharded' needs a group of processes...
    """
    if not _world:
        raise SettingError(
            "operator='sharded' needs a group of processes. None has been made: start the program by torchrun and call "
            "rtgp.distributed.start() first (`torchrun --nproc-per-node=4 -m rtgp fit ...` does so itself)."
        )
    return _world[0]


def start(
    backend: str | None = None, timeout: float = TIMEOUT, on_silence: Callable[[str], None] | None = None
) -> Group:
    """Join the other ranks. Every process that torchrun started calls this once.

    Parameters
    ----------
    backend : {"nccl", "gloo"}, optional
        By default "nccl" where there is a card, of which each process takes the one of its local rank.
    timeout : float
        Seconds that an operation of all ranks may take. A rank that dies or hangs ends the others after it at the
        latest.
    on_silence : callable, optional
        It is called with the reason when a rank is lost, from another thread, since the main one cannot be interrupted.
        By default the reason, which names the rank, is logged and the process ends.

    Returns
    -------
    Group
        The ranks.

    Raises
    ------
    SettingError
        If torchrun did not start this process.
    RankError
        If the others cannot be joined in time.

    Examples
    --------
    In a program that `torchrun --nproc-per-node=4 program.py` starts:

    >>> import rtgp
    >>> group = rtgp.distributed.start()  # doctest: +SKIP
    >>> method = rtgp.RRCG(operator="sharded")
    >>> rtgp.distributed.stop()
    """
    if _world:
        return _world[0]
    if not launched():
        raise SettingError(
            f"Expected the environment variables {', '.join(_VARIABLES)}, which torchrun sets. Start the program by "
            "torchrun, for instance `torchrun --nproc-per-node=4 program.py`."
        )
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not 1.0 <= timeout < 1e6:
        raise SettingError(f"The 'timeout' parameter must be a number of seconds from 1. Got {timeout!r} instead.")
    backend = ("nccl" if torch.cuda.is_available() else "gloo") if backend is None else backend
    if backend not in ("nccl", "gloo"):
        raise SettingError(f"The 'backend' parameter must be 'nccl' or 'gloo'. Got {backend!r} instead.")
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=timedelta(seconds=timeout)))
        dist.init_process_group(
            backend,
            store=PrefixStore("rtgp", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout + _SPARE),
        )
        # A connection of its own, where torch can make one: nothing the main thread waits for holds it up.
        own = store.clone() if hasattr(store, "clone") else store
        watch = Watch(own, rank, size, timeout, on_silence or _end, store)
    except RuntimeError as error:
        raise RankError(
            f"Rank {rank} of {size} could not join the others within {timeout:g} s: {str(error).splitlines()[0]}"
        ) from error
    group = Group(rank, size, dist.group.WORLD, watch, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    _world.append(group)
    atexit.register(_at_exit, os.getpid())
    try:
        group.objects(rank)  # everybody has given a first sign of life
    except BaseException as error:
        stop(f"{type(error).__name__}: {error}", alone=True)
        raise
    return group


def stop(words: str = "it has finished", alone: bool = False) -> None:
    """Leave the group. Without one, nothing happens.

    No thread of the group is left afterwards. A thread of gloo that drops the last reference to a tensor takes the
    interpreter's lock; one that does so while the interpreter ends aborts the process, with all its work done.

    Parameters
    ----------
    words : str
        What the others are told of the reason.
    alone : bool
        Whether the others stay.

    Examples
    --------
    >>> import rtgp
    >>> rtgp.distributed.stop()
    """
    if not _world:
        return
    group = _world.pop()
    atexit.unregister(_at_exit)
    group.close(words)
    # NCCL would wait for the others.
    if dist.is_initialized() and (not alone or dist.get_backend() == "gloo"):
        held = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        if held() is not None:
            _clear_frames()
    group.release()


def _clear_frames() -> None:
    """Let go of the process group, whose end joins its threads, where the traceback of an error holds it."""
    for frame in gc.get_objects():
        if type(frame) is FrameType and frame.f_globals.get("__name__", "").startswith("torch.distributed"):
            with suppress(RuntimeError):  # it is being executed
                frame.clear()
    gc.collect()


def _at_exit(process: int) -> None:
    """For a program that never calls `stop`: the interpreter still runs here, and everything can be joined."""
    if not _world or os.getpid() != process:  # a fork has the list, but none of the threads
        return
    error = getattr(sys, "last_value", None)  # what the program died of
    words = "its program has ended" if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
    stop(words, alone=error is not None)


def _end(words: str) -> None:
    _log.critical(words)
    os._exit(1)
