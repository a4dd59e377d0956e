"""SVGP, POE and sgGP on one split, default settings: test RMSE and NLL in units of the training target's standard
deviation, beside the paper's table.

    RTGP_DATA=folder python benchmarks/bench_baselines.py --sets elevators --methods svgp,poe,sggp --seeds 10
"""

from __future__ import annotations

import argparse
import math
import time
import warnings

import numpy as np
import record

import rtgp

# Table S1: mean over three splits.
PAPER = {
    ("elevators", "svgp"): (0.376, 0.442),
    ("elevators", "poe"): (0.379, 0.469),
    ("elevators", "sggp"): (0.362, 0.426),
    ("pol", "svgp"): (0.150, -0.442),
    ("pol", "poe"): (0.174, -0.252),
    ("pol", "sggp"): (0.128, -0.480),
    ("bike", "svgp"): (0.045, -1.514),
    ("bike", "poe"): (0.071, -0.799),
    ("bike", "sggp"): (1.044, 85.715),
}


def predict(gp: rtgp.GPRegressor, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of observations; from an exact model by Cholesky, whatever its size."""
    if not isinstance(gp.method_, rtgp.SGGP):
        return gp.predict(X, return_std=True)
    at, scaling = rtgp.posterior(gp.model_, gp.likelihood_, method="cholesky"), gp._preprocessing.scaling
    x = gp._new_inputs(X)
    mean, variance = at.mean(x), at.variance(x, include_noise=True)
    return scaling.unscale_target(mean.cpu().double().numpy()), scaling.unscale_std(
        variance.cpu().double().sqrt().numpy()
    )


def measure(name: str, method: str, seed: int, device: str, dtype: str) -> dict[str, object]:
    parts = rtgp.datasets.load(name).split(seed)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Input columns that say nothing")
        gp = rtgp.GPRegressor(method=method, random_state=0, device=device, dtype=dtype)
        gp.fit(parts.train.X, parts.train.y)
    fitted = time.perf_counter()
    mean, std = predict(gp, parts.test.X)
    predicted = time.perf_counter()
    z = (parts.test.y - mean) / std
    rmse, nll = PAPER.get((name, method), ("", ""))
    return {
        "set": name,
        "seed": seed,
        "method": method,
        "settings": repr(gp.method_),
        "dtype": gp.dtype_,
        "n": len(parts.train.y),
        "steps": gp.fit_result_.steps,
        "fit_seconds": round(fitted - begin, 1),
        "predict_seconds": round(predicted - fitted, 1),
        "rmse": round(float(np.sqrt(np.mean((parts.test.y - mean) ** 2))), 4),
        "rmse_paper": rmse,
        "nll": round(float(np.mean(0.5 * z**2 + np.log(std))) + 0.5 * math.log(2.0 * math.pi), 4),
        "nll_paper": nll,
        "coverage_of_90": round(float(np.mean(np.abs(z) < 1.6449)), 4),
        "noise": f"{gp.hyperparameters_['noise']:.4g}",
        "loss": round(gp.fit_result_.loss, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="elevators")
    parser.add_argument("--methods", default="svgp,poe,sggp")
    parser.add_argument("--seeds", default="10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            for method in arguments.methods.split(","):
                row = measure(name, method, seed, arguments.device, arguments.dtype)
                print(row, flush=True)
                record.append("baselines", [row])


if __name__ == "__main__":
    main()
