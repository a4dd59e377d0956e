"""What a number was computed on: hardware, versions and date."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

# The version of rtgp, of the code that runs. pyproject.toml reads it from here; nothing else states it.
__version__ = "0.2.0"
COLUMNS = ("date", "hardware", "python", "torch", "gpytorch", "rtgp")
PACKAGES = ("torch", "gpytorch", "linear_operator", "numpy", "scikit-learn")


def provenance(device: str) -> dict[str, str]:
    """The columns of a row, by their names in COLUMNS."""
    if torch.device(device).type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        hardware = f"{_processor()}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    versions = (platform.python_version(), torch.__version__, version("gpytorch"), __version__)
    return dict(zip(COLUMNS, (datetime.date.today().isoformat(), hardware, *versions), strict=True))


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute, and the machine, in words."""
    found = {"python": platform.python_version(), "rtgp": __version__}
    found |= {package: number for package in PACKAGES if (number := version_of(package))}
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["processors"] = f"{os.cpu_count()} ({torch.get_num_threads()} used by torch)"
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def version_of(package: str) -> str:
    """The installed version of a package; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
