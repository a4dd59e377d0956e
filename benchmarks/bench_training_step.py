"""One training step (value and gradient) of our methods against GPyTorch's, in one run, with peak memory.

n = 9600, d = 26, float32, 10 probes, rank 5, 100 iterations. Each case runs in a process of its own, so that its peak
memory is its own; times are the best of the repeats, ratios are against GPyTorch in the same run.

    python benchmarks/bench_training_step.py            # all cases
    python benchmarks/bench_training_step.py --case cg  # one of them, prints its figures
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import threading
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

import gpytorch
import record
import torch
from bench_time_to_optimum import Model

import rtgp

PROBES, ITERATIONS, RANK = 10, 100, 5


def make_model(n: int, d: int, dtype: torch.dtype) -> Model:
    """Points of about the smoothness of the pol data: CG does not converge within the iterations measured."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=dtype)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=dtype)
    model = Model(x, y).to(dtype)
    model.covar_module.base_kernel.lengthscale = math.sqrt(d)
    model.likelihood.noise = 0.003
    return model.train()


def gpytorch_settings(name: str) -> list[object]:
    s = gpytorch.settings
    if name == "gpytorch-cholesky":
        return [s.fast_computations(False, False, False)]
    return [
        s.max_cholesky_size(0),
        s.cg_tolerance(1e-10),
        s.max_cg_iterations(ITERATIONS),
        s.num_trace_samples(PROBES),
        s.max_preconditioner_size(RANK),
        s.min_preconditioning_size(1),
    ]


METHODS = {
    "cg": rtgp.CG(ITERATIONS, PROBES, rtgp.PivotedCholesky(RANK, "greedy"), operator="dense"),
    "rr-cg": rtgp.RRCG.paper(operator="dense"),
    "cg-tiled": rtgp.CG(3, PROBES, rtgp.PivotedCholesky(RANK, "greedy"), operator="tiled"),
    "cholesky": rtgp.Cholesky(),
    "cholesky-float64": rtgp.Cholesky(),
    "rr-cg-auto": rtgp.RRCG(operator="dense"),
}
CASES = {
    # name: (n, repeats)
    "gpytorch-cg": (9600, 2),
    "cg": (9600, 3),
    "rr-cg": (9600, 20),
    "rr-cg-auto": (9600, 3),
    "gpytorch-cholesky": (9600, 2),
    "cholesky": (9600, 2),
    "cholesky-float64": (9600, 2),
    "cg-tiled": (40000, 1),
}


class PeakMemory:
    """Peak resident memory above what it was at the start, by polling: pages freed and taken again do not add up."""

    def __enter__(self) -> PeakMemory:
        self.base = self.peak = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _now(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.peak = max(self.peak, self._now())

    def __exit__(self, *args: object) -> None:
        self._stop.set()
        self._thread.join()


def measure(name: str) -> dict[str, object]:
    n, repeats = CASES[name]
    dtype = torch.float64 if name.endswith("float64") else torch.float32
    model = make_model(n, 26, dtype)
    if name.startswith("gpytorch"):
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        contexts = gpytorch_settings(name)
    else:
        method = METHODS[name]
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=torch.Generator().manual_seed(0))
        contexts = []
    (inputs,) = model.train_inputs
    small = make_model(300, 26, dtype)  # libraries loaded and threads started before anything is measured
    small_mll = type(mll)(small.likelihood, small) if name.startswith("gpytorch") else None
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for context in contexts:
            stack.enter_context(context)
        if small_mll is None:
            small_mll = rtgp.MarginalLogLikelihood(small.likelihood, small, method)
        (-small_mll(small(*small.train_inputs), small.train_targets)).backward()
        seconds, iterations = [], []
        with PeakMemory() as memory:
            for _ in range(repeats):
                model.zero_grad()
                start = time.perf_counter()
                (-mll(model(inputs), model.train_targets)).backward()
                seconds.append(time.perf_counter() - start)
                iterations.append(getattr(getattr(mll, "last", None), "iterations", ITERATIONS))
    mean = sum(seconds) / len(seconds)
    return {
        "case": name,
        "n": n,
        "d": 26,
        "dtype": str(dtype).removeprefix("torch."),
        "repeats": repeats,
        "seconds_best": round(min(seconds), 3),
        "seconds_mean": round(mean, 3),
        "iterations_mean": round(sum(iterations) / len(iterations), 1),
        "peak_mib_above_start": round((memory.peak - memory.base) / 2**20),
        "peak_over_n2": round((memory.peak - memory.base) / (n * n * dtype.itemsize), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES))
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case)))
        return
    rows = []
    for case in CASES:
        output = subprocess.run(
            [sys.executable, __file__, "--case", case], check=True, capture_output=True, text=True
        ).stdout
        rows.append(json.loads(output.splitlines()[-1]))
        print(rows[-1], flush=True)
    seconds = {row["case"]: row["seconds_mean"] for row in rows}
    peers = {"cg": "gpytorch-cg", "rr-cg": "cg", "rr-cg-auto": "cg", "cholesky": "gpytorch-cholesky"}
    for row in rows:
        peer = peers.get(str(row["case"]), "")
        row["peer"] = peer
        row["times_faster_than_peer"] = round(seconds[peer] / seconds[row["case"]], 2) if peer else ""
    path = record.append("training_step", rows)
    print(f"rows appended to {path.name}")


if __name__ == "__main__":
    main()
