"""Fixtures that every test folder may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, named by RTGP_DATA; the test is skipped where there is none."""
    folder = os.environ.get("RTGP_DATA")
    if not folder:
        pytest.skip("RTGP_DATA is not set: it names the folder of the real data sets")
    if not Path(folder).is_dir():
        pytest.fail(f"RTGP_DATA names no folder: {folder!r}")
    return Path(folder)
