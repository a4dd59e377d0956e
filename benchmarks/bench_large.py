"""Large spatial data on a CPU: a published comparison, and what a list of tiles is worth.

    python benchmarks/bench_large.py heaton [--kernels matern32,matern12] [--points N] [--gpboost FOLDER]
    python benchmarks/bench_large.py products [--sizes 10000,20000,40000] [--rounds 5]

heaton: satellite temperatures, trained on the rows that were given and judged on the hidden ones (Heaton et al. 2019),
by this library and by GPBoost in one run. Every contender has a process of its own and the same two threads. `interval`
is the mean score of the central 95% interval: its width, and 40 times what a target lies outside of it. `share` is that
of the tiles of K that are visited at the end.

products: K @ V of 11 columns on part of britain-magnetic, by the tiles that count, recomputed and stored, beside all
tiles, one after the other in each round; `beside` is a product over all tiles of that round in units of it.

Rows are appended to results/large_heaton.csv and results/large_products.csv. What is there already, of this version of
the library, is not run again. Data is looked for as `rtgp.datasets.load` does.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import checkout  # noqa: F401
import gpytorch
import record
import torch

import rtgp
from rtgp._kernels import read_kernel
from rtgp._provenance import provenance
from rtgp.operators import NearOperator, TiledOperator
from rtgp.operators._blocks import TILE_SIZES
from rtgp.operators._near_plan import plan_of

HERE = Path(__file__).resolve().parents[1]
COLUMNS = 11  # right-hand sides of a run of RR-CG: the data and ten probes
NOISE = 0.05  # beside a scale of 1: about what britain-magnetic has
LENGTHSCALE = 0.02  # of the standardised position: about that of britain-magnetic at 440,000 points

TRAIN = """
import json, sys, time, warnings
import numpy as np
kernel, contender, points = sys.argv[1], sys.argv[2], int(sys.argv[3])
warnings.simplefilter("ignore")
import rtgp
data = rtgp.datasets.load("heaton-satellite")
train, test = data.rows(np.flatnonzero(~data.test_rows)), data.rows(np.flatnonzero(data.test_rows))
if points:
    train, test = train.subset(min(points, len(train)), seed=0), test.subset(min(points, len(test)), seed=0)
X, y = train.X, (train.y - train.y.mean()) / train.y.std()
shape = {"matern12": 0.5, "matern32": 1.5}[kernel]
found = {"share": float("nan"), "steps": -1, "operator": ""}
begin = time.perf_counter()
if contender == "gpboost":
    import gpboost
    model = gpboost.GPModel(
        gp_coords=X, cov_function="matern", cov_fct_shape=shape, gp_approx="vecchia", num_neighbors=20,
        likelihood="gaussian",
    )
    model.fit(y=y, params={"trace": False})
    fitted = time.perf_counter()
    made = model.predict(gp_coords_pred=test.X, predict_var=True, predict_response=True)
    mean, std = np.asarray(made["mu"]), np.sqrt(np.asarray(made["var"]))
else:
    gp = rtgp.GPRegressor(kernel=kernel, method=rtgp.RRCG(), device="cpu", random_state=0).fit(X, y)
    fitted = time.perf_counter()
    mean, std = gp.predict(test.X, return_std=True)
seconds = {"fit": fitted - begin, "predict": time.perf_counter() - fitted}
if contender != "gpboost":
    from rtgp._kernels import read_kernel
    from rtgp.operators import choose
    model = gp.model_
    form = read_kernel(model.covar_module, model.train_inputs[0])
    choice = choose(form, least_noise=float(model.likelihood.noise.min()))
    share = 1.0 if choice.plan is None else choice.plan.share
    found = {"share": share, "steps": len(gp.history_), "operator": choice.operator}
mean, std = mean * train.y.std() + train.y.mean(), std * train.y.std()
low, high = mean - 1.959964 * std, mean + 1.959964 * std
outside = np.maximum(low - test.y, 0.0) + np.maximum(test.y - high, 0.0)
found |= {
    "n": len(train), "rmse": float(np.sqrt(np.mean((mean - test.y) ** 2))),
    "coverage": float(np.mean(outside == 0.0)), "interval": float(np.mean(high - low + 40.0 * outside)),
}
print(json.dumps({**seconds, **found}))
"""


def trained(kernel: str, contender: str, points: int, folder: str) -> dict[str, float]:
    """In a process of its own. folder: what it imports from before anything else."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": folder}
    command = [sys.executable, "-c", TRAIN, kernel, contender, str(points)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def known(name: str, keys: tuple[str, ...]) -> set[tuple[str, ...]]:
    """What rows of this version there are already."""
    path = record.RESULTS / f"{name}.csv"
    if not path.exists():
        return set()
    version = str(provenance("cpu")["rtgp"])
    with path.open(newline="") as file:
        return {tuple(row[key] for key in keys) for row in csv.DictReader(file) if row["rtgp"] == version}


def heaton(options: argparse.Namespace) -> None:
    folders = {"rtgp": str(HERE / "src")}
    if options.gpboost is not None:
        folders["gpboost"] = f"{HERE / 'src'}:{options.gpboost}"
    labels = {"rtgp": "RRCG()", "gpboost": "GPBoost, 20 neighbours"}
    done = known("large_heaton", ("kernel", "contender", "points"))
    for kernel in options.kernels.split(","):
        for contender, folder in folders.items():
            if (kernel, labels[contender], str(options.points)) in done:
                continue
            found = trained(kernel, contender, options.points, folder)
            row = {
                "kernel": kernel, "contender": labels[contender], "points": options.points, "n": found["n"],
                "fit_seconds": f"{found['fit']:.1f}", "predict_seconds": f"{found['predict']:.1f}",
                "steps": found["steps"], "operator": found["operator"], "share": f"{found['share']:.4f}",
                "rmse": f"{found['rmse']:.4f}", "coverage": f"{found['coverage']:.4f}",
                "interval": f"{found['interval']:.3f}",
            }  # fmt: skip
            print(row, flush=True)
            record.append("large_heaton", [row])


def products(options: argparse.Namespace) -> None:
    data = rtgp.datasets.load("britain-magnetic")
    place = data.X[:, :2]
    place = place - place.mean(0)
    X = torch.tensor(place / place.std(), dtype=torch.float32)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    done = known("large_products", ("n", "kernel"))
    for n in map(int, options.sizes.split(",")):
        for name, shape in (("matern12", 0.5), ("matern32", 1.5)):
            if (str(n), name) in done:
                continue
            kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(shape))
            kernel.base_kernel.lengthscale, kernel.outputscale = LENGTHSCALE, 1.0
            form = read_kernel(kernel, X[order[:n]])
            plan = plan_of(form, NOISE, share=1.0)
            assert plan is not None
            tile = TILE_SIZES["cpu"]
            contenders = {
                "near": NearOperator(form, tile, NOISE, plan),
                "near, stored": NearOperator(form, tile, NOISE, plan, stored=True),
                "all tiles": TiledOperator(form, tile),
            }
            v = torch.randn(n, COLUMNS, generator=torch.Generator().manual_seed(1))
            seconds: dict[str, list[float]] = {label: [] for label in contenders}
            results = {}
            for _ in range(options.rounds):
                for label, operator in contenders.items():
                    begin = time.perf_counter()
                    results[label] = operator.matmul(v)
                    seconds[label].append(time.perf_counter() - begin)
            whole = results["all tiles"]
            rows: list[dict[str, object]] = []
            for label, found in seconds.items():
                beside = statistics.median(a / b for a, b in zip(seconds["all tiles"], found, strict=True))
                off = float((results[label] - whole).norm() / whole.norm())
                rows.append(
                    {
                        "n": n, "kernel": name, "contender": label, "share": f"{plan.share:.4f}",
                        "seconds": f"{statistics.median(found):.4g}", "beside": f"{beside:.2f}", "error": f"{off:.1e}",
                    }
                )  # fmt: skip
                print(rows[-1], flush=True)
            record.append("large_products", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("heaton", "products"))
    parser.add_argument("--kernels", default="matern32,matern12")
    parser.add_argument("--points", type=int, default=0, help="of the training and of the test part; 0: all")
    parser.add_argument("--gpboost", help="folder with GPBoost's package")
    parser.add_argument("--sizes", default="10000,20000,40000")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    (heaton if options.what == "heaton" else products)(options)


if __name__ == "__main__":
    main()
