"""Short fits by each of the methods, each with something random in it where the method has any."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import rtgp

METHODS: dict[str, Any] = {
    "cholesky": rtgp.Cholesky(),
    "cg": rtgp.CG(iterations=20, probes=4),
    "rr-cg": rtgp.RRCG(probes=4),
    "rff": rtgp.RFF(features=30),
    "ss-rff": rtgp.SSRFF(),
    "svgp": rtgp.SVGP(inducing=20, batch_size=40),
    "poe": rtgp.POE(expert_size=30),
    "sggp": rtgp.SGGP(neighbours=5, centres=40),
    "vecchia": rtgp.Vecchia(neighbours=6),
}


def data(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    return X, 4.0 * np.sin(2.0 * X[:, 0]) + X[:, 1] + rng.normal(size=n)


NEW = np.random.default_rng(1).uniform(-2.0, 2.0, (25, 2))


def fitted(
    name: str, X: np.ndarray, y: np.ndarray, method: Any = None, dtype: str = "float64", steps: int = 4
) -> rtgp.GPRegressor:
    chosen = METHODS[name] if method is None else method
    return rtgp.GPRegressor(method=chosen, dtype=dtype, steps=steps, random_state=0).fit(X, y)


def fingerprint(gp: rtgp.GPRegressor) -> dict[str, str]:
    """Every number that a fit leaves behind, to the last bit."""
    mean, std = gp.predict(NEW, return_std=True)
    found = {"mean": mean.tobytes().hex(), "std": std.tobytes().hex()}
    found["likelihood"] = float(gp.log_marginal_likelihood_value_).hex()
    found |= {key: float(value).hex() for key, value in gp.hyperparameters_.items()}
    found |= {f"error of {key}": float(value).hex() for key, value in gp.hyperparameter_errors_.items()}
    losses = [float(row["loss"]).hex() for row in gp.history_.rows]
    return found | {"losses": " ".join(losses)}


def fingerprints(threads: int, thorough: bool) -> dict[str, dict[str, str]]:
    """Of all methods with so many threads. Thorough: each in both precisions, on points enough for threads to
    share the work (torch gives each at least 32,768 numbers)."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    precisions = ("float64", "float32")
    try:
        return {
            f"{name}, {dtype}": fingerprint(fitted(name, *data(400 if thorough else 90), dtype=dtype))
            for k, name in enumerate(METHODS)
            for dtype in (precisions if thorough else precisions[k % 2 :][:1])
        }
    finally:
        torch.set_num_threads(before)
