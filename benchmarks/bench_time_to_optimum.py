"""Seconds until a training run has reached the exact optimum: RR-CG against Cholesky, each with its own best optimiser.

All runs of a set begin at the same hyperparameters, those fitted by Cholesky on 1000 random points. Every step's
hyperparameters are kept, and when the clock has stopped their exact objective is computed (Cholesky, float64).
`optimum` is the least objective that any run on this set and split has reached, in this call or in rows of the CSV file
from before; `seconds_to_optimum` is the time after which a run was within 0.002 per point of it, and stayed there.

    RTGP_DATA=folder python benchmarks/bench_time_to_optimum.py --sets pol --runs cholesky:lbfgs,rr-cg:auto
"""

from __future__ import annotations

import argparse
import csv
import math
import time

import gpytorch
import record
import torch

import rtgp
from rtgp import datasets

NAME = "time_to_optimum"
WITHIN = 0.002
METHODS = {
    "cholesky": (rtgp.Cholesky(), torch.float64),
    "rr-cg": (rtgp.RRCG(), torch.float32),
    "rr-cg-paper": (rtgp.RRCG.paper(), torch.float32),
    "cg": (rtgp.CG(100), torch.float32),
}


class Model(gpytorch.models.ExactGP):
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1]))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def new_model(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype) -> Model:
    return Model(x.to(dtype), y.to(dtype)).to(device=x.device, dtype=dtype)


def load(name: str, seed: int, limit: int | None, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    part = datasets.load(name).split(seed)[0]
    x, y = (torch.tensor(array, dtype=torch.float64, device=device)[:limit] for array in (part.X, part.y))
    return x[:, x.std(0) > 1e-6], y


def train(x, y, method, optimizer: str, steps: int | None, seed: int, made=None):
    """The result, and (seconds, parameters) after every step. method: a name, or settings, which train in float32.
    made: a model to train, or a new one."""
    settings, dtype = METHODS[method] if isinstance(method, str) else (method, torch.float32)
    model = new_model(x, y, dtype) if made is None else made
    if x.is_cuda:
        torch.cuda.synchronize()
    course, began = [], time.perf_counter()

    def note(row, trained) -> None:
        if trained.train_targets.is_cuda:
            torch.cuda.synchronize()
        state = {key: value.detach().cpu().clone() for key, value in trained.state_dict().items()}
        course.append((time.perf_counter() - began, state))

    rate = 0.1 if optimizer == "adam" else None
    result = rtgp.fit(
        model, model.likelihood, *model.train_inputs, model.train_targets, settings, optimizer, steps, rate, seed,
        callback=note, subset_start=True,
    )  # fmt: skip
    return result, course, model.state_dict()


def exact_objective(x: torch.Tensor, y: torch.Tensor, state) -> float:
    """The exact negative log marginal likelihood per point, float64."""
    model = new_model(x, y, torch.float64).train()
    model.load_state_dict(state)
    model = model.double()
    with torch.no_grad():
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
        return -float(mll(model(x), y))


def known_optimum(name: str, seed: int, n: int) -> float:
    path = record.RESULTS / f"{NAME}.csv"
    if not path.exists():
        return math.inf
    with path.open() as file:
        rows = [r for r in csv.DictReader(file) if (r["set"], int(r["seed"]), int(r["n"])) == (name, seed, n)]
    return min((float(row["objective"]) for row in rows if row["objective"]), default=math.inf)


def last_stretch(x, y, course, optimum: float) -> list[tuple[float, float]]:
    """(seconds, exact objective) from the last step that was not within reach of a known optimum: fewer to compute."""
    found: list[tuple[float, float]] = []
    for seconds, state in reversed(course):
        found.insert(0, (seconds, exact_objective(x, y, state)))
        if found[0][1] > optimum + WITHIN:
            break
    return found


def seconds_to(optimum: float, course: list[tuple[float, float]]) -> float:
    """When the run came within reach of the optimum for good; NaN if it never did."""
    late = [k for k, (_, objective) in enumerate(course) if objective > optimum + WITHIN]
    first = late[-1] + 1 if late else 0
    return course[first][0] if first < len(course) else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="pol,bike,elevators,kin40k,protein,keggdirected,keggundirected")
    parser.add_argument("--runs", default="cholesky:lbfgs,rr-cg:auto", help="method:optimizer[:steps],...")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--seeds", default="0", help="of the probes, truncations and pivots")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, help="at most this many training points")
    parser.add_argument("--final-only", action="store_true", help="exact objective of the end alone")
    parser.add_argument("--known-optimum", action="store_true", help="that of the rows from before: fewer to compute")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        x, y = load(name, arguments.split, arguments.limit, arguments.device)
        found = []
        for run in arguments.runs.split(","):
            method, optimizer, steps = (*run.split(":"), "")[:3]
            for seed in map(int, arguments.seeds.split(",") if method != "cholesky" else "0"):
                row = {"set": name, "n": len(y), "d": x.shape[1], "seed": arguments.split, "run_seed": seed}
                row |= {"method": method, "optimizer": optimizer}
                try:
                    result, course, final = train(x, y, method, optimizer, int(steps) if steps else None, seed)
                except rtgp.errors.RTGPError as error:
                    print(row, "FAILED", error, flush=True)
                    found.append((row, None, [], str(error)[:120]))
                    continue
                if method == "cholesky":  # its own values are exact; but for L-BFGS those from before a step's update
                    values = [float(loss) for loss in result.history.column("loss")]
                    if optimizer != "lbfgs":
                        values = [*values[1:], result.loss]
                    exact = list(zip([seconds for seconds, _ in course], values, strict=True))
                elif arguments.known_optimum:
                    exact = last_stretch(x, y, course, known_optimum(name, arguments.split, len(y)))
                else:
                    points = course[-1:] if arguments.final_only else course
                    exact = [(seconds, exact_objective(x, y, state)) for seconds, state in points]
                objective = result.loss if method == "cholesky" else exact_objective(x, y, final)
                found.append((row, (result, objective), exact, ""))
                print(row, result, f"exact {objective:.5f}", [f"{s:.1f}:{v:.4f}" for s, v in exact], flush=True)
        optimum = min([known_optimum(name, arguments.split, len(y)), *(f[1][1] for f in found if f[1])])
        rows = []
        for row, outcome, exact, failure in found:
            result, objective = outcome or (None, math.nan)
            iterations = [] if result is None else result.history.column("iterations")
            rows.append(
                row
                | {
                    "steps": "" if result is None else result.steps,
                    "seconds": "" if result is None else round(result.seconds, 2),
                    "objective": "" if result is None else round(objective, 5),
                    "gap": "" if result is None else round(objective - optimum, 5),
                    "optimum": round(optimum, 5),
                    "seconds_to_optimum": "" if result is None else round(seconds_to(optimum, exact), 2),
                    "iterations_mean": "" if not iterations else round(sum(iterations) / len(iterations), 1),
                    "rank": "" if result is None else result.history.column("rank")[-1],
                    "failure": failure,
                }
            )
            print(rows[-1], flush=True)
        record.append(NAME, rows)


if __name__ == "__main__":
    main()
