"""Whether the fused kernels can be used here, and if not, why. Imports no Triton."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch

from rtgp._kernels.composites import Scaled
from rtgp._kernels.form import KernelForm
from rtgp._kernels.stationary import Stationary
from rtgp.operators._gpu.points import CHUNK, KIND, expanded_length

MAXIMUM_DIMENSIONS = 128
_LARGEST_INDEX = 2**31 - 1  # positions within a tensor are int32 in the kernels
_OLDEST = (8, 0)
_CAPABILITY = ".".join(map(str, _OLDEST))
SUPPORTED = (
    "The 'triton' operator supports RBF and Matern 1/2, 3/2, 5/2 kernels, ARD and an outputscale included, of 1 to "
    f"{MAXIMUM_DIMENSIONS} inputs, in float32, on a CUDA device of compute capability {_CAPABILITY} or more with "
    "Triton installed"
)


def supported(form: KernelForm) -> str | None:
    """None where the fused kernels can evaluate this form; otherwise the reason why not, in words."""
    leaf = stationary(form)
    if leaf is None:
        return "the kernel is not a single RBF or Matern kernel, with or without an outputscale"
    if leaf.formula.name not in KIND:
        return f"the fused kernels have no formula of {leaf.formula.name!r}"
    if form.dtype != torch.float32:
        return f"the numbers are {str(form.dtype).removeprefix('torch.')}, the fused kernels work in float32"
    dimensions = leaf.z.shape[1]
    if not 1 <= dimensions <= MAXIMUM_DIMENSIONS:
        return f"there are {dimensions} inputs"
    if form.size * (expanded_length(dimensions) + CHUNK) > _LARGEST_INDEX:
        return f"{form.size} points of {dimensions} inputs are more than the kernels can number"
    if not importable():
        return "Triton is not installed"
    if form.device.type == "cuda":
        return _too_old(form.device)
    if form.device.type == "cpu" and interpreted():
        return None
    return f"the data is on {form.device}, not on a CUDA device"


def usable(device: torch.device) -> bool:
    """Whether Triton's kernels run on a device at all."""
    return device.type == "cuda" and importable() and _too_old(device) is None


def stationary(form: KernelForm) -> Stationary | None:
    """The leaf of a form that is one stationary kernel under at most one scale."""
    leaf = form.form if isinstance(form, Scaled) else form
    return leaf if isinstance(leaf, Stationary) else None


def interpreted() -> bool:
    """Triton's interpreter runs the kernels on the CPU, slowly: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def importable() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _too_old(device: torch.device) -> str | None:
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) >= _OLDEST:
        return None
    return f"the card has compute capability {major}.{minor}, below {_CAPABILITY}"
