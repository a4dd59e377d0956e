"""Seconds times the noise of a gradient, beside another checkout: pairs of evaluations in turn, in one run.

    RTGP_DATA=folder python benchmarks/bench_noise_cost.py --old FOLDER [--only us-airports:matern12,pol:rbf]

`RRCG()` evaluates the objective as in Newton's training, at hyperparameters that this library has trained. Each
checkout has a process of its own, and they take turns. `noise` is half the square of (gradient - exact gradient) in the
inverse metric of the average information, per point; `cost` is its mean times the median of the seconds. Evaluations
before those that count make the preconditioner and teach the control variate. `gain`: the old cost over this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import checkout  # noqa: F401
import record
import torch
from bench_ablation import exact_gradient
from bench_time_to_optimum import load

import rtgp
from rtgp._estimator.model import new_model
from rtgp._objectives.control_coefficients import by_cost

HERE = Path(__file__).resolve().parents[1]
FELT = 1e-8  # part of the largest information below which a hyperparameter has none
PAIRS = (
    "us-airports:matern12,us-airports:matern32,precipitation:matern32,kin40k:matern32,kin40k:rbf,protein:rbf,pol:rbf,"
    "elevators:rbf,bike:rbf,keggdirected:rbf"
)

# Public classes of GPyTorch, so that both checkouts have the same model. A line of input asks for one evaluation.
WORKER = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import gpytorch, torch
import rtgp
try:
    from rtgp.training._problem import Problem
except ImportError:  # before modules were private by name
    from rtgp.training.problem import Problem

data = torch.load(sys.argv[1])
x, y, nu = data["x"].float(), data["y"].float(), data["nu"]

class Model(gpytorch.models.ExactGP):
    def __init__(self):
        noise = gpytorch.constraints.GreaterThan(1e-6)
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood(noise_constraint=noise))
        self.mean_module = gpytorch.means.ConstantMean()
        shape = dict(ard_num_dims=x.shape[1])
        base = gpytorch.kernels.MaternKernel(nu=nu, **shape) if nu else gpytorch.kernels.RBFKernel(**shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(base)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

model = Model()
model.covar_module.base_kernel.lengthscale = data["lengthscale"]
model.covar_module.outputscale = data["outputscale"]
model.likelihood.noise = data["noise"]
model.mean_module.constant.data.fill_(data["constant"])
model.train()
problem = Problem(model, model.likelihood, x, y, rtgp.RRCG(), 0)
for number, line in enumerate(sys.stdin):
    begin = time.perf_counter()
    one = problem.evaluate(contrast=True, information=0.03 if number < int(sys.argv[2]) else None)
    seconds = time.perf_counter() - begin
    found = dict(seconds=seconds, gradient=one.gradient.tolist(), iterations=one.stats.iterations)
    print(json.dumps(found | dict(rank=one.stats.rank, names=list(problem.parameters))), flush=True)
"""


class Worker:
    """A process that evaluates the objective with the library of one checkout."""

    def __init__(self, folder: Path, data: Path, before: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
        command = [sys.executable, "-c", WORKER, str(data), str(before)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def evaluate(self) -> dict[str, object]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, object] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def compare(name: str, kernel: str, arguments: argparse.Namespace) -> list[dict[str, object]]:
    x, y = load(name, 0, arguments.limit, "cpu")
    model = new_model(x, y, kernel, None)
    trained = new_model(x.float(), y.float(), kernel, None)
    rtgp.fit(trained, trained.likelihood, x.float(), y.float(), rtgp.RRCG())
    model.load_state_dict({key: value.double() for key, value in trained.state_dict().items()})
    exact, metric = exact_gradient(model.train())
    felt = metric.diagonal() > FELT * metric.diagonal().max()
    root = by_cost(metric[felt][:, felt])
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.pt"
        base = model.covar_module.base_kernel
        torch.save(
            {
                "x": x, "y": y, "nu": getattr(base, "nu", None), "lengthscale": base.lengthscale.detach(),
                "outputscale": model.covar_module.outputscale.item(), "noise": model.likelihood.noise.item(),
                "constant": model.mean_module.constant.item(),
            },
            data,
        )  # fmt: skip
        workers = {"this": Worker(HERE, data, arguments.before), "old": Worker(arguments.old, data, arguments.before)}
        found: dict[str, list[dict[str, object]]] = {label: [] for label in workers}
        try:
            for _ in range(arguments.before + arguments.pairs):
                for label, worker in workers.items():
                    found[label].append(worker.evaluate())
        finally:
            for worker in workers.values():
                worker.end()
    rows = []
    for label, all_of_them in found.items():
        ones = all_of_them[arguments.before :]
        gradients = torch.tensor([one["gradient"] for one in ones], dtype=torch.float64)
        noise = 0.5 * float((((gradients - exact)[:, felt]) @ root.T).square().sum(1).mean())
        seconds = statistics.median(float(one["seconds"]) for one in ones)  # type: ignore[arg-type]
        iterations = statistics.fmean(float(one["iterations"]) for one in ones)  # type: ignore[arg-type]
        rows.append(
            {
                "set": name, "kernel": kernel, "n": len(y), "d": x.shape[1], "checkout": label, "pairs": len(ones),
                "seconds": round(seconds, 4), "iterations": round(iterations, 1), "rank": ones[-1]["rank"],
                "noise": f"{noise:.3g}", "cost": noise * seconds,
            }
        )  # fmt: skip
    mine, theirs = (float(row["cost"]) for row in rows)  # type: ignore[arg-type]
    return [{**row, "cost": f"{row['cost']:.3g}", "gain": f"{theirs / mine:.3g}"} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="folder of another checkout")
    parser.add_argument("--only", default=PAIRS, help="set:kernel,...")
    parser.add_argument("--limit", type=int, default=5000, help="at most this many training points")
    parser.add_argument("--pairs", type=int, default=10, help="of evaluations that count")
    parser.add_argument("--before", type=int, default=3, help="evaluations before, which do not count")
    arguments = parser.parse_args()
    arguments.old = arguments.old.resolve()
    for pair in arguments.only.split(","):
        rows = compare(*pair.split(":"), arguments)
        for row in rows:
            print(row, flush=True)
        record.append("noise_cost", rows)


if __name__ == "__main__":
    main()
