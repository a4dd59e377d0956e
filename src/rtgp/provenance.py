"""What a number was computed on: hardware, versions and date, as columns of a row."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

__version__ = "0.1.0"  # of rtgp: of the code that runs, which need not be an installed one
COLUMNS = ("date", "hardware", "python", "torch", "gpytorch", "rtgp")


def provenance(device: str) -> dict[str, str]:
    """Under COLUMNS."""
    if torch.device(device).type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        hardware = f"{_processor()}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    versions = (platform.python_version(), torch.__version__, version("gpytorch"), __version__)
    return dict(zip(COLUMNS, (datetime.date.today().isoformat(), hardware, *versions), strict=True))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
