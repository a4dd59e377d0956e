"""Fixtures that every test folder may use."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: a pass of the garbage collector need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """What a test takes from the global generators, as GPyTorch's initial values, follows from the test alone."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 what is seeded is the old generator, which other people's code draws from


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, named by RTGP_DATA; the test is skipped where there is none."""
    folder = os.environ.get("RTGP_DATA")
    if not folder:
        pytest.skip("RTGP_DATA is not set: it names the folder of the real data sets")
    if not Path(folder).is_dir():
        pytest.fail(f"RTGP_DATA names no folder: {folder!r}")
    return Path(folder)
