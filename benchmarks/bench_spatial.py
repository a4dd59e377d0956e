"""Spatial data on a CPU: whole trainings of one table by this library, by an older one, and by GPBoost, in one run.

    python benchmarks/bench_spatial.py --points 5000 --kernels matern12,matern32 [--old FOLDER] [--gpboost FOLDER]

old: the folder of another checkout, whose `src` is trained with too, in a process of its own. gpboost: a folder with
GPBoost's package (or where it is installed already). Every contender has a process of its own and the same two threads.
`above` is the exact negative log marginal likelihood per point at the end, by Cholesky in float64, less the lowest of
this run; GPBoost's own hyperparameters are put into the same model (its mean is zero, the targets are standardised).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import checkout  # noqa: F401
import record
import torch

import rtgp
from reproduction.models import exact_objective
from rtgp._estimator.model import new_model

HERE = Path(__file__).resolve().parents[1]

TRAIN = """
import json, sys, time, warnings
import numpy as np
name, n, kernel, contender = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
warnings.simplefilter("ignore")
import rtgp
data = rtgp.datasets.load(name).subset(n, seed=0)
X, y = (data.X - data.X.mean(0)) / data.X.std(0), (data.y - data.y.mean()) / data.y.std()
if contender == "gpboost":
    import gpboost
    shape = {"matern12": 0.5, "matern32": 1.5}[kernel]
    begin = time.perf_counter()
    model = gpboost.GPModel(
        gp_coords=X, cov_function="matern_ard", cov_fct_shape=shape, gp_approx="vecchia", num_neighbors=20,
        likelihood="gaussian",
    )
    model.fit(y=y, params={"trace": False})
    seconds = time.perf_counter() - begin
    noise, outputscale, *lengthscales = np.asarray(model.get_cov_pars()).reshape(-1).tolist()
    # Its ranges are those of exp(-r / range) and of (1 + sqrt(3) r / range) exp(...): the lengthscales of this library.
    found = {"noise": noise, "outputscale": outputscale, "lengthscale": lengthscales, "mean": 0.0, "steps": -1}
    found["iterations"] = -1
else:
    make = rtgp.GPRegressor  # loads scikit-learn, which GPBoost's import has done too
    begin = time.perf_counter()
    gp = make(kernel=kernel, method=rtgp.RRCG(), random_state=0, standardize=False).fit(X, y)
    seconds = time.perf_counter() - begin
    last = gp.history_.rows[-1]
    lengthscales = [last[key] for key in last if key.startswith("lengthscale")]
    found = {"noise": last["noise"], "outputscale": last["outputscale"], "lengthscale": lengthscales}
    found |= {"mean": last["mean"], "steps": len(gp.history_)}
    found["iterations"] = sum(row["iterations"] for row in gp.history_.rows) / len(gp.history_)
print(json.dumps({"seconds": seconds, **found}))
"""


def trained(name: str, n: int, kernel: str, contender: str, folder: str) -> dict[str, object]:
    """In a process of its own. folder: what it imports from before anything else."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": folder}
    command = [sys.executable, "-c", TRAIN, name, str(n), kernel, contender]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def exact(name: str, n: int, kernel: str, found: dict[str, object]) -> float:
    data = rtgp.datasets.load(name).subset(n, seed=0)
    X = torch.tensor((data.X - data.X.mean(0)) / data.X.std(0))
    y = torch.tensor((data.y - data.y.mean()) / data.y.std())
    model = new_model(X, y, kernel, None)
    model.covar_module.base_kernel.lengthscale = torch.tensor([found["lengthscale"]])
    model.covar_module.outputscale = float(found["outputscale"])  # type: ignore[arg-type]
    model.mean_module.constant.data.fill_(float(found["mean"]))  # type: ignore[arg-type]
    model.likelihood.noise = max(float(found["noise"]), 1.0001e-6)  # type: ignore[arg-type]
    return float(exact_objective(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", default="us-airports")
    parser.add_argument("--points", type=int, default=5000)
    parser.add_argument("--kernels", default="matern12,matern32")
    parser.add_argument("--old", help="folder of another checkout")
    parser.add_argument("--gpboost", help="folder with GPBoost's package")
    options = parser.parse_args()
    contenders = {"RRCG()": ("rtgp", str(HERE / "src"))}
    if options.gpboost is not None:
        contenders["GPBoost, 20 neighbours"] = ("gpboost", f"{HERE / 'src'}:{options.gpboost}")
    if options.old is not None:
        contenders["RRCG() before neighbours"] = ("rtgp", str(Path(options.old).resolve() / "src"))
    for kernel in options.kernels.split(","):
        rows = []
        for label, (contender, folder) in contenders.items():
            found = trained(options.set, options.points, kernel, contender, folder)
            rows.append({"label": label, **found, "exact": exact(options.set, options.points, kernel, found)})
            print(rows[-1], flush=True)
        best = min(row["exact"] for row in rows)
        record.append(
            "spatial",
            [
                {
                    "set": options.set, "n": options.points, "kernel": kernel, "contender": row["label"],
                    "seconds": f"{row['seconds']:.1f}", "steps": row["steps"], "iterations": f"{row['iterations']:.1f}",
                    "loss": f"{row['exact']:.5f}", "above": f"{row['exact'] - best:.5f}",
                    "noise": f"{row['noise']:.3g}",
                }
                for row in rows
            ],
        )  # fmt: skip


if __name__ == "__main__":
    main()
