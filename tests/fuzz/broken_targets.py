"""As campaign.py --worker, with a target that fails in every way there is: the harness is tried on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import campaign, targets


def broken(chance, folder: Path, count: list[int] = []) -> None:  # noqa: B006
    count.append(0)
    case = BEGIN + len(count) - 4
    if len(count) <= 3:  # they are tried before anything is limited
        return
    if case == 0:
        raise KeyError("another error")
    if case == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == 2:
        time.sleep(60.0)
    if case == 3:
        bytearray(8 * 2**30)
    if case == 4:
        subprocess.run(["true"])


if __name__ == "__main__":
    BEGIN = int(sys.argv[3])
    targets.TARGETS["broken"] = broken
    campaign.worker(sys.argv[2], BEGIN, int(sys.argv[4]), Path(sys.argv[5]))
