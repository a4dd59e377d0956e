"""Which operator to use, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from rtgp.errors import SettingError
from rtgp.kernels import KernelForm, read_kernel
from rtgp.operators.dense import DenseOperator
from rtgp.operators.protocol import KernelOperator
from rtgp.operators.tiled import TiledOperator

_TILE = {"cpu": 1024, "cuda": 4096}
_MEMORY_FRACTION = 0.6  # of what is free: the rest is for the preconditioner, the solver and the caller
_UNKNOWN_MEMORY = 4 * 2**30  # assumed where the system does not tell (outside Linux)

_OPERATORS: dict[str, Callable[[KernelForm, int], KernelOperator]] = {"dense": DenseOperator, "tiled": TiledOperator}


@dataclass(frozen=True)
class Choice:
    """The operator to use and the reason in words."""

    operator: str
    reason: str


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on the device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        # Not what is free but what could be: file caches, which fill the rest of every busy machine, give way.
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return _UNKNOWN_MEMORY


def choose(form: KernelForm, operator: str = "auto", available: int | None = None) -> Choice:
    """Dense where n^2 numbers fit in the free memory of the device, tiled beyond."""
    if operator != "auto":
        if operator not in _OPERATORS:
            names = ", ".join(repr(name) for name in ("auto", *_OPERATORS))
            raise SettingError(f"The 'operator' parameter must be one of {names}. Got {operator!r} instead.")
        return Choice(operator, "asked for")
    needed = form.size**2 * form.dtype.itemsize
    limit = int(_MEMORY_FRACTION * (free_memory(form.device) if available is None else available))
    words = f"K needs {needed / 2**30:.2f} GiB and {limit / 2**30:.2f} GiB may be used on {form.device}"
    return Choice("dense", words) if needed <= limit else Choice("tiled", words)


def make_from_form(form: KernelForm, operator: str = "auto") -> KernelOperator:
    """The operator of a form that has been read already."""
    return _OPERATORS[choose(form, operator).operator](form, _TILE.get(form.device.type, 1024))


def make(kernel: Kernel, X: Tensor, operator: str = "auto", dtype: torch.dtype | None = None) -> KernelOperator:
    """K(X, X) of a GPyTorch kernel as an operator: "dense", "tiled", or "auto"."""
    return make_from_form(read_kernel(kernel, X, dtype), operator)
