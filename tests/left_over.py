"""What a call leaves behind that nobody asked for, found without a pass of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, FunctionType
from typing import Any

import gpytorch
import torch
from gpytorch.models import GP
from torch import Tensor

_LARGE = 1024  # bytes


class OnPurposeError(Exception):
    """Thrown by tests."""


def left_over(call: Callable[[], object], *errors: type[BaseException]) -> list[str]:
    """Objects of rtgp and large tensors that are still there after a call, which may end in one of the errors.

    Left out, with the parameters, buffers and data that they hold, are GPyTorch's own modules, and so a user's model:
    each holds itself by a hook (`rtgp._ownership`).
    """
    gc.collect()
    gc.freeze()  # what is there already is not among the objects that the collector tells
    gc.disable()
    try:
        with suppress(*errors):
            call()
        new = [found for found in gc.get_objects() if _is_ours(found)]
        held = {id(tensor) for module in _gpytorch_modules() for tensor in _tensors(module)}
    finally:
        gc.enable()
    return [_name(found) for found in new if id(found) not in held and not isinstance(found, GP)]


def _is_ours(found: Any) -> bool:
    if issubclass(type(found), Tensor):
        return bool(found.untyped_storage().nbytes() > _LARGE)
    if type(found) is FrameType:
        return "/rtgp/" in found.f_code.co_filename
    if type(found) is FunctionType:
        return str(found.__module__).startswith("rtgp")
    return str(type(found).__module__).startswith("rtgp")


def _gpytorch_modules() -> list[torch.nn.Module]:
    return [found for found in gc.get_objects() if issubclass(type(found), gpytorch.Module)]


def _tensors(module: torch.nn.Module) -> list[Tensor]:
    """Of the module itself: parameters, buffers, training data, known noise."""
    own = [*vars(module).values(), *module._parameters.values(), *module._buffers.values()]
    return [t for value in own for t in (value if isinstance(value, (tuple, list)) else [value]) if torch.is_tensor(t)]


def _name(found: Any) -> str:
    if issubclass(type(found), Tensor):
        return f"Tensor {tuple(found.shape)} {found.grad_fn or ''}"
    return getattr(found, "__qualname__", None) or f"{type(found).__qualname__} {found!r:.60}"
