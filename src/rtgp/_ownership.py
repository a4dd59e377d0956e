"""The owner of memory frees it at once, and never leaves it to the garbage collector.

A collection may come at any time, also while a card records a run: what it frees then spoils the recording. And memory
that waits for a collection is not free when the next fit needs it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import TypeVar

import torch

M = TypeVar("M", bound=torch.nn.Module)
E = TypeVar("E", bound=BaseException)


def without_cycles(module: M, recurse: bool = True) -> M:
    """The same module, freed with its last reference, and with `recurse` the modules in it.

    Every GPyTorch module holds itself: one of its hooks, of which torch keeps a list, is its own bound method. The same
    hook is put in its place as a plain function, to which torch passes the module, held by a weak reference. Copies and
    pickles keep that.
    """
    for part in module.modules() if recurse else (module,):
        hooks = part._load_state_dict_pre_hooks
        for key, wrapped in list(hooks.items()):
            hook = getattr(wrapped, "hook", None)
            if isinstance(hook, MethodType) and hook.__self__ is part:
                del hooks[key]
                part._register_load_state_dict_pre_hook(hook.__func__, with_module=True)  # type: ignore[no-untyped-call]
    return module


@contextmanager
def collector_held_off() -> Iterator[None]:
    """No garbage collection within; afterwards there is one again where there was one before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def without_frames(error: E) -> E:
    """The same error, to be kept: without its tracebacks, whose frames hold everything that was at work."""
    part: BaseException | None = error
    while part is not None:
        part.__traceback__ = None
        part = part.__cause__ or part.__context__
    return error
