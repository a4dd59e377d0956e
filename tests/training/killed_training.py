"""killed_training.py FOLDER MOMENTS: train, kill -9 at random moments, resume, compare bit for bit.

A program of its own that forks: libraries are loaded once, and every child dies like a process that was killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from gp_models import airports, make
from rtgp.training import fit

X, y = airports(60)


def train(folder: Path, result: Path) -> None:
    """In a child: train to the end and write the parameters."""
    model = make(X, y)
    fit(model, model.likelihood, X, y, "rr-cg", steps=15, checkpoint=folder, checkpoint_every=1)
    flat = torch.nn.utils.parameters_to_vector(model.parameters())
    part = result.with_suffix(".part")
    part.write_bytes(flat.detach().numpy().tobytes())
    part.replace(result)


def start(folder: Path, result: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(folder, result)
            status = 0
        finally:
            os._exit(status)
    return child


def main(folder: Path, moments: int) -> int:
    torch.set_num_threads(1)
    began = time.perf_counter()
    os.waitpid(start(folder / "whole", folder / "whole.bin"), 0)
    seconds = time.perf_counter() - began
    wanted = (folder / "whole.bin").read_bytes()
    chance, equal, killed = random.Random(0), 0, 0
    for k in range(moments):
        place, result = folder / f"killed{k}", folder / f"killed{k}.bin"
        for _ in range(2):  # killed twice, the second time while it goes on from a checkpoint
            child = start(place, result)
            time.sleep(chance.uniform(0.0, 0.6) * seconds)
            os.kill(child, signal.SIGKILL)
            killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        os.waitpid(start(place, result), 0)
        equal += result.read_bytes() == wanted
    sys.stdout.write(f"{equal} of {moments} equal, {killed} killed, {seconds:.2f} s a run\n")
    return 0 if killed >= moments else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
