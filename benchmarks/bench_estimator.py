"""`GPRegressor(method="rr-cg")` from default settings against the exact optimum: likelihood, RMSE and seconds.

The exact optimum is found by Cholesky in float64 with exact Newton steps, on the same standardised data.

    RTGP_DATA=folder python benchmarks/bench_estimator.py --sets elevators,pol,kin40k:3000
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import record
from bench_time_to_optimum import exact_objective, new_model

import rtgp


def compare(name: str, n: int | None, split: int) -> dict[str, object]:
    parts = rtgp.datasets.load(name).split(split, standardise=False)
    begin = time.perf_counter()
    gp = rtgp.GPRegressor(method="rr-cg", random_state=0).fit(parts.train.X[:n], parts.train.y[:n])
    seconds = time.perf_counter() - begin
    found = gp.predict(parts.test.X)
    predicted = time.perf_counter() - begin - seconds
    x, y = gp.model_.train_inputs[0].double(), gp.model_.train_targets.double()
    exact = new_model(x, y, x.dtype)
    best = rtgp.fit(
        exact, exact.likelihood, x, y, "cholesky", "average-information", seed=0, subset_start=True, tolerance=1e-4
    )
    mean = rtgp.posterior(exact, exact.likelihood).mean(gp._new_inputs(parts.test.X).double())
    wanted = gp._preprocessing.scaling.unscale_target(mean.numpy())
    errors = [float(np.sqrt(np.mean((one - parts.test.y) ** 2))) for one in (found, wanted)]
    unit = gp._preprocessing.scaling.y_scale
    objective = exact_objective(x, y, gp.model_.state_dict())
    return {
        "set": name,
        "n": len(y),
        "d": x.shape[1],
        "split": split,
        "method": "rr-cg",
        "dtype": gp.dtype_,
        "steps": gp.fit_result_.steps,
        "seconds": round(seconds, 1),
        "predict_seconds": round(predicted, 1),
        "objective": round(objective, 5),
        "optimum": round(best.loss, 5),
        "gap": round(objective - best.loss, 5),
        "reported": round(gp.fit_result_.loss, 5),
        "reported_error": round(gp.fit_result_.loss_error, 5),
        "rmse": round(errors[0] / unit, 5),
        "rmse_exact": round(errors[1] / unit, 5),
        "rmse_ratio": round(errors[0] / errors[1], 5),
        "exact_seconds": round(best.seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="kin40k:3000,elevators,pol", help="names, with a number of rows if not all")
    parser.add_argument("--split", type=int, default=0)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Input columns that say nothing")
    for one in arguments.sets.split(","):
        name, _, rows = one.partition(":")
        row = compare(name, int(rows) if rows else None, arguments.split)
        print(row, flush=True)
        record.append("estimator", [row])


if __name__ == "__main__":
    main()
