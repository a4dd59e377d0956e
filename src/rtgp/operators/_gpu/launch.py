"""What every launch needs to know about the device."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of the card; 4 in the interpreter, so that splitting is exercised there too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
