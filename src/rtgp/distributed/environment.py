"""What must be the same on every rank for it to compute the same numbers."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

_PACKAGES = ("rtgp", "torch", "gpytorch", "numpy", "scipy")


def environment(device: torch.device) -> dict[str, str]:
    """Versions, threads and hardware."""
    found = {f"version of {name}": _version(name) for name in _PACKAGES}
    found["version of Python"] = platform.python_version()
    found["threads"] = str(torch.get_num_threads())
    if device.type == "cuda":
        found["card"] = torch.cuda.get_device_name(device)
    else:
        found["instructions of the processor"] = torch.backends.cpu.get_cpu_capability()
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
