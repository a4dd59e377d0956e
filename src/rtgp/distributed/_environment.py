"""What must be the same on every rank for it to compute the same numbers."""

from __future__ import annotations

import platform

import torch

from rtgp._provenance import __version__, version_of

_PACKAGES = ("torch", "gpytorch", "numpy", "scipy")


def environment(device: torch.device) -> dict[str, str]:
    """What must be the same on every rank for it to compute the same numbers: versions, threads and hardware.

    Parameters
    ----------
    device : torch.device
        Where the rank computes.

    Returns
    -------
    dict of str to str
        Each fact by its name.

    Examples
    --------
    >>> import torch
    >>> from rtgp import distributed
    >>> distributed.environment(torch.device("cpu"))["version of torch"] == torch.__version__
    True
    """
    found = {"version of rtgp": __version__}
    found |= {f"version of {name}": version_of(name) or "not installed" for name in _PACKAGES}
    found["version of Python"] = platform.python_version()
    found["threads"] = str(torch.get_num_threads())
    if device.type == "cuda":
        found["card"] = torch.cuda.get_device_name(device)
    else:
        found["instructions of the processor"] = torch.backends.cpu.get_cpu_capability()
    return found
