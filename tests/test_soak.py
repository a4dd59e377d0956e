"""Nothing that a user does twice may fail or cost more the second time."""

from __future__ import annotations

import ctypes
import logging
import sys

import psutil
import pytest

from left_over import left_over
from soak import METHODS, fit_one

_log = logging.getLogger(__name__)

SMALL = (50, 64, 90, 120, 75, 60, 210)
LARGE = {"rr-cg": 3000, "cholesky": 2000, "cg": 1000, "rff": 2000, "svgp": 1000, "ss-rff": 1000, "poe": 3000}
TURN = 20  # fits: one of each method on many points, the others on few


def test_one_fit_after_the_other() -> None:
    for k in range(5):  # whatever is imported on first use
        fit_one(k, METHODS[k % len(METHODS)], SMALL[k % len(SMALL)])

    def many() -> None:
        for k in range(5, 25):
            fit_one(k, METHODS[k % len(METHODS)], SMALL[k % len(SMALL)])

    assert left_over(many) == []


def _resident() -> float:
    """MiB in use. The C library keeps freed pieces of its heap, 200 MiB of them after some fits, and returns them when
    asked."""
    before = psutil.Process().memory_info().rss
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    after = psutil.Process().memory_info().rss
    _log.info("%.0f MiB resident, %.0f MiB without the free parts of the heap", before / 2**20, after / 2**20)
    return after / 2**20


@pytest.mark.slow
def test_two_hundred_fits() -> None:
    """Ten times the same twenty: oneDNN keeps what it has compiled for every shape of a product, 2 MiB for one fit."""
    resident = []
    for k in range(10 * TURN):
        place = k % TURN
        method, small = METHODS[place % len(METHODS)], SMALL[place % len(SMALL)]
        n = LARGE.get(method, 1000) if place < len(METHODS) else small
        fit_one(place, method, n)
        resident.append(_resident())
        _log.info("fit %d, %s on %d points: %.0f MiB", k, method, n, resident[-1])  # --log-cli-level=info shows it
    early, late = resident[TURN - 1], resident[-1]
    assert late <= 1.05 * early, f"{early:.0f} MiB after {TURN} fits, {late:.0f} MiB after {len(resident)}"
