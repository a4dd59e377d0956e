"""`torchrun -m rtgp fit ...`: the same command on several processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rtgp import distributed
from rtgp._cli.terminal import FAILURE, say_of_rank, set_rank
from rtgp._methods import METHODS, AnyMethod
from rtgp.distributed import Group
from rtgp.operators._choose import SHARDED


@contextmanager
def ranks(timeout: float, device: str) -> Iterator[Group]:
    """The processes that torchrun started, or this one alone."""
    if not distributed.launched():
        yield Group.alone()
        return
    group = distributed.start("gloo" if device == "cpu" else None, timeout, _end)
    set_rank(group.rank)
    try:
        yield group
    except BaseException as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        distributed.stop(words, alone=not distributed.is_on_every_rank(error))
        raise
    distributed.stop()


def spread(method: str) -> str | AnyMethod:
    """The method of a name on many ranks; the name itself where it knows one process only.

    "auto" is RR-CG whatever n is: Cholesky would leave all ranks but one without work, and the number of ranks, which
    may change from one run to the next, must not change the method.
    """
    kind = METHODS["rr-cg" if method == "auto" else method]
    return kind(operator=SHARDED) if kind.spreads else method


def _end(words: str) -> None:
    say_of_rank(f"rtgp: error: {words} The job ends; the same command goes on from its last checkpoint, if it has one.")
    os._exit(FAILURE)
