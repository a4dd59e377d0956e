"""Which operator to use, and why."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from rtgp.distributed import Group, world
from rtgp.errors import SettingError
from rtgp.kernels import KernelForm, read_kernel
from rtgp.memory import available_memory
from rtgp.operators.dense import DenseOperator
from rtgp.operators.protocol import KernelOperator
from rtgp.operators.sharded import ShardedOperator
from rtgp.operators.tiled import TiledOperator
from rtgp.operators.triton import SUPPORTED, HalfOperator, TritonOperator, half_bytes, supported

_log = logging.getLogger("rtgp")

_TILE = {"cpu": 512, "cuda": 4096}  # a CPU keeps a few tiles of float64 in its cache
MEMORY_FRACTION = 0.6  # of what is free: the rest is for the preconditioner, the solver and the caller


def _dense(form: KernelForm, tile: int) -> KernelOperator:
    """K stored: on a card by its half, where the fused kernels can make it."""
    return HalfOperator(form, tile) if _in_half(form) else DenseOperator(form, tile)


def _in_half(form: KernelForm) -> bool:
    return form.device.type == "cuda" and supported(form) is None


_OPERATORS: dict[str, Callable[[KernelForm, int], KernelOperator]] = {
    "dense": _dense,
    "tiled": TiledOperator,
    "triton": TritonOperator,
}
SHARDED = "sharded"  # or "sharded:dense", "sharded:tiled", "sharded:triton": what each rank does with its rows


@dataclass(frozen=True)
class Choice:
    """The operator to use and the reason in words."""

    operator: str
    reason: str


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on the device now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, ready for use
        return torch.cuda.mem_get_info(device)[0] + cached
    return available_memory()


def choose(form: KernelForm, operator: str = "auto", available: int | None = None, ranks: int = 1) -> Choice:
    """Dense where n^2 numbers, or on a card half of them, fit in the free memory of the device: reading K is faster
    than computing it from the second product on. Beyond, triton on a card that has it, and tiled otherwise. ranks: over
    which the rows of K are spread."""
    if operator != "auto":
        if operator not in _OPERATORS:
            names = ", ".join(repr(name) for name in ("auto", *_OPERATORS, SHARDED, *_sharded_names()))
            raise SettingError(f"The 'operator' parameter must be one of {names}. Got {operator!r} instead.")
        reason = supported(form) if operator == "triton" else None
        if reason is not None:
            raise SettingError(f"{SUPPORTED}. Here {reason}. Use operator='auto', 'dense' or 'tiled' instead.")
        return Choice(operator, "asked for")
    halved = ranks == 1 and _in_half(form)
    needed = half_bytes(form.size) if halved else form.size**2 * form.dtype.itemsize // ranks
    limit = int(MEMORY_FRACTION * (free_memory(form.device) if available is None else available))
    words = ("half of K" if halved else "K") if ranks == 1 else f"K / {ranks}"
    words += f" needs {needed / 2**30:.2f} GiB and {limit / 2**30:.2f} GiB may be used on {form.device}"
    fits = needed <= limit
    if fits or form.device.type != "cuda":
        return Choice("dense" if fits else "tiled", words)
    reason = supported(form)
    if reason is None:
        return Choice("triton", words)
    _say_once(f"K(X, X) goes by the 'tiled' operator, slower than 'triton', which cannot be used: {reason}.")
    return Choice("tiled", f"{words}; 'triton' cannot be used: {reason}")


@functools.cache
def _say_once(words: str) -> None:
    _log.warning(words)


def is_sharded(operator: str) -> bool:
    """Whether an operator of this name is spread over ranks."""
    return operator == SHARDED or operator in _sharded_names()


def _sharded_names() -> tuple[str, ...]:
    return tuple(f"{SHARDED}:{name}" for name in _OPERATORS)


def group_for(operator: str) -> Group:
    """The ranks that take part in the products of an operator of this name."""
    return world() if is_sharded(operator) else Group.alone()


def make_from_form(form: KernelForm, operator: str = "auto") -> KernelOperator:
    """The operator of a form that has been read already."""
    tile = _TILE.get(form.device.type, 1024)
    if is_sharded(operator):
        group, local = world(), operator.partition(":")[2] or "auto"
        # Processes on one machine share its memory; each has a card of its own.
        available = free_memory(form.device) // (1 if form.device.type == "cuda" else group.neighbours)
        return ShardedOperator(form, tile, group, choose(form, local, available, group.size).operator)
    choice = choose(form, operator)
    try:
        return _OPERATORS[choice.operator](form, tile)
    except torch.OutOfMemoryError:
        if operator != "auto" or choice.operator != "dense":
            raise
        # Somebody else took the memory that was free a moment ago, or it is in pieces.
        torch.cuda.empty_cache()
        other = choose(form, operator, available=0).operator
        _log.warning(
            "There was no memory left to store K(X, X) on %s: products go by the '%s' operator.", form.device, other
        )
        return _OPERATORS[other](form, tile)


def make(kernel: Kernel, X: Tensor, operator: str = "auto", dtype: torch.dtype | None = None) -> KernelOperator:
    """K(X, X) of a GPyTorch kernel as an operator: "dense", "tiled", "triton", or "auto"; "sharded" over the ranks of
    `rtgp.distributed.start()`."""
    return make_from_form(read_kernel(kernel, X, dtype), operator)
