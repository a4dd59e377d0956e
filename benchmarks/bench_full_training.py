"""Whole training runs with Adam at learning rate 0.1, every method with the same number of steps and the same start.

Rows in `results/full_training.csv`: seconds of the run, the exact objective (Cholesky, float64) at its end, and its gap
to the best objective known for the set (results/time_to_optimum.csv). A run may be cut short (`method:steps`) for its
time alone: its seconds are then those of a step times the full number (`extrapolated`).
GPyTorch's methods are run by GPyTorch alone, from the same start, in float32.

    RTGP_DATA=folder python benchmarks/bench_full_training.py --sets kin40k --device cuda
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from contextlib import ExitStack

import bench_training_step as training_step
import gpytorch
import record
import torch
from bench_time_to_optimum import exact_objective, known_optimum, load, new_model, train

import rtgp
from rtgp.training._choose_start import start_from_subset
from rtgp.training._problem import Problem

NAME = "full_training"
SMALL = {"pol", "bike", "elevators"}


def gpytorch_run(x, y, name: str, steps: int):
    """Seconds of `steps` steps of Adam with GPyTorch's own likelihood and solver, and the parameters at their end."""
    model = new_model(x, y, torch.float32).train()
    problem = Problem(model, model.likelihood, *model.train_inputs, model.train_targets, rtgp.Cholesky(), 0)
    start_from_subset(problem, 1000, 0)
    model.float()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    seconds = []
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for context in training_step.gpytorch_settings(name):
            stack.enter_context(context)
        for _ in range(steps):
            began = time.perf_counter()
            optimizer.zero_grad()
            (-mll(model(*model.train_inputs), model.train_targets)).backward()
            optimizer.step()
            if x.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    return seconds, model.state_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="pol,bike,elevators,kin40k,protein,keggdirected,keggundirected")
    parser.add_argument(
        "--runs",
        default="rr-cg,cholesky,rr-cg-paper,gpytorch-cg,gpytorch-cholesky:3",
        help="method[:steps],...; fewer steps than the full number are for their time alone",
    )
    parser.add_argument("--seeds", default="0,1,2", help="of the start, and of all that is random")
    parser.add_argument("--seeded", default="rr-cg", help="methods that are run with every seed; the others with 0")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        x, y = load(name, arguments.split, None, arguments.device)
        full = 150 if name in SMALL else 60
        best = known_optimum(name, arguments.split, len(y))
        for run in arguments.runs.split(","):
            method, _, wanted = run.partition(":")
            steps = int(wanted) if wanted else full
            for seed in map(int, arguments.seeds.split(",") if method in arguments.seeded.split(",") else "0"):
                row = {"set": name, "n": len(y), "d": x.shape[1], "split": arguments.split, "run_seed": seed}
                row |= {"method": method, "optimizer": "adam 0.1", "steps": full}
                iterations: float | str = ""
                try:
                    if method.startswith("gpytorch"):
                        times, state = gpytorch_run(x, y, method, steps)
                        # The first step of a process starts its libraries.
                        seconds = statistics.fmean(times[1:]) * full if steps < full else sum(times)
                    else:
                        result, course, state = train(x, y, method, "adam", steps, seed)
                        marks = [mark for mark, _ in course]
                        each = (marks[-1] - marks[0]) / (len(marks) - 1)
                        seconds = result.seconds if steps == full else marks[0] + each * (full - 1)
                        iterations = round(statistics.fmean(result.history.column("iterations")), 1)
                    objective = exact_objective(x, y, state) if steps == full else math.nan
                    failure = ""
                except (rtgp.errors.RTGPError, gpytorch.utils.errors.NotPSDError, RuntimeError) as error:
                    seconds, objective, failure = math.nan, math.nan, str(error)[:150].replace("\n", " ")
                row |= {
                    "seconds": round(seconds, 2),
                    "seconds_per_step": round(seconds / full, 4),
                    "extrapolated": steps < full,
                    "objective": round(objective, 5),
                    "gap_to_best_known": round(objective - best, 5),
                    "best_known": round(best, 5),
                    "iterations": iterations,
                    "failure": failure,
                }
                print(row, flush=True)
                record.append(NAME, [row])
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
