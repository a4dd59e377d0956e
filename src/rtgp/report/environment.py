"""What a result depends on besides its settings: versions and the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata

PACKAGES = ("rtgp", "torch", "gpytorch", "linear_operator", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute, and the machine, in words."""
    import torch

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["processors"] = f"{os.cpu_count()} ({torch.get_num_threads()} used by torch)"
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found
