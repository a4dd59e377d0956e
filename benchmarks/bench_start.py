"""Where training begins: GPyTorch's lengthscales of ln 2 against the root of the number of inputs.

`RRCG()` with everything else as it is, 2000 points of each set (standardised inputs). Rows: steps and exact objective.

    RTGP_DATA=folder python benchmarks/bench_start.py --limit 2000
"""

from __future__ import annotations

import argparse
import math

import bench_time_to_optimum as whole
import checkout  # noqa: F401
import record
import torch

import rtgp
from reproduction.models import exact_objective
from rtgp._estimator.model import GPYTORCH_START, new_model

STARTS = {"ln 2": GPYTORCH_START, "root of d": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="pol,elevators,kin40k,protein,keggdirected,keggundirected,bike")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        x, y = (part.float() for part in whole.load(name, arguments.split, arguments.limit, arguments.device))
        for start, lengthscale in STARTS.items():
            for seed in map(int, arguments.seeds.split(",")):
                model = new_model(x, y, "rbf", None, lengthscale)
                row = {"set": name, "n": len(y), "d": x.shape[1], "split": arguments.split}
                row |= {"start": start, "run_seed": seed}
                try:
                    result = rtgp.fit(model, model.likelihood, x, y, rtgp.RRCG(), seed=seed)
                    row |= {"steps": result.steps, "seconds": round(result.seconds, 2)}
                    row |= {"objective": round(exact_objective(model), 5), "failure": ""}
                except rtgp.errors.RTGPError as error:
                    row |= {"steps": 0, "seconds": math.nan, "objective": math.nan, "failure": str(error)[:150]}
                print(row, flush=True)
                record.append("start", [row])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
