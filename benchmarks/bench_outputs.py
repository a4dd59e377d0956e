"""Several outputs against one: seconds and memory of `GPRegressor` with shared and with own hyperparameters.

The outputs are draws of one Gaussian process, made of its random features. Every measurement is a process of its own;
the kinds take turns, so that what else the machine does falls on all of them. Ratios are those of medians; steps are
fixed, so that all do the same work, and `--steps 0` trains to convergence.

    python benchmarks/bench_outputs.py --n 5000 --outputs 4 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import checkout  # noqa: F401
import numpy as np
import record
import torch

import rtgp

KINDS = ("one", "shared", "independent")
FEATURES = 2000  # of the process that the outputs are drawn from


def data(n: int, outputs: int, inputs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of a process with lengthscale 0.8, outputscale 1 and noise 0.1."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, inputs))
    frequencies, phases = rng.normal(size=(inputs, FEATURES)) / 0.8, rng.uniform(0, 2 * np.pi, FEATURES)
    weights = rng.normal(size=(FEATURES, outputs)) * (2.0 / FEATURES) ** 0.5
    return X, np.cos(X @ frequencies + phases) @ weights + 0.1**0.5 * rng.normal(size=(n, outputs))


def measure(arguments: argparse.Namespace, kind: str, seed: int) -> dict[str, float]:
    X, Y = data(arguments.n, arguments.outputs, arguments.inputs, seed)
    method, steps = rtgp.RRCG(operator=arguments.operator), arguments.steps or None
    settings = {"method": method, "steps": steps, "random_state": seed, "standardize": False}
    # What is loaded and compiled at the first fit is no part of the cost.
    rtgp.GPRegressor(**settings).fit(X[:300], Y[:300, 0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, count = time.perf_counter(), 1
    if kind == "one":  # the mean over the outputs: how long a training takes depends on its data
        count = arguments.outputs
        for target in Y.T:
            gp = rtgp.GPRegressor(**settings).fit(X, target)
    else:
        gp = rtgp.GPRegressor(outputs=kind, **settings).fit(X, Y)
    seconds = (time.perf_counter() - begin) / count
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    gp.predict(X[:500], return_std=True)
    return {
        "seconds": seconds,
        "predict_seconds": time.perf_counter() - begin,
        "mib": (peak - before) / 1024,
        "predict_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=5000)
    parser.add_argument("--inputs", type=int, default=3)
    parser.add_argument("--outputs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--operator", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kind", choices=KINDS, help="measure this one alone, in this process")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.kind:
        print(json.dumps(measure(arguments, arguments.kind, arguments.seed)))
        return
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for repeat in range(arguments.repeats):
        for kind in KINDS:
            command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--kind", kind, "--seed", str(repeat)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[kind].append(json.loads(done.stdout.splitlines()[-1]))
            print(repeat, kind, found[kind][-1], flush=True)
    medians = {
        kind: {name: statistics.median(one[name] for one in rows) for name in rows[0]} for kind, rows in found.items()
    }
    rows = []
    for kind in KINDS:
        names = ("n", "inputs", "outputs", "steps", "threads", "repeats")
        row: dict[str, object] = {"kind": kind, **{name: getattr(arguments, name) for name in names}}
        for name, value in medians[kind].items():
            row |= {name: round(value, 2), f"{name}_ratio": round(value / max(medians["one"][name], 1e-9), 3)}
        rows.append(row)
        print(row, flush=True)
    print(f"rows appended to {record.append('outputs', rows).name}")


if __name__ == "__main__":
    main()
