"""What rounding K to float32 costs, beside what `rtgp._preconditioners.amplification` predicts: exact, by Cholesky.

    RTGP_DATA=folder python benchmarks/bench_float32.py [--sets us-airports,kin40k] [--points 2500] [--predictions 100]

Of each set some points at random, standardised. K is computed in float32 and in float64 at the same hyperparameters,
and both are then factored in float64. `predicted` is rounding in units of the noise, for entries of the size they have,
as far as it reaches a solution: float32 stays up to `limit`. `quadratic` is y^T A^-1 y / n, about 1 at an optimum; the
loss's error grows with it.
"""

from __future__ import annotations

import argparse
import math
from itertools import product

import numpy as np
import record
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

import rtgp
from rtgp._kernels import read_covariance
from rtgp._kernels.sample_statistics import size_of_entries
from rtgp._precision import PrecisionLimits, PrecisionSettings, felt_of_entries
from rtgp._preconditioners.amplification import amplification, reach_of

OUTPUTSCALE = 2.0
KERNELS = {"matern12": 0.5, "matern32": 1.5, "rbf": None}


def covariance(kernel: str, lengthscale: float, x: Tensor) -> Tensor:
    nu = KERNELS[kernel]
    own = ScaleKernel(RBFKernel() if nu is None else MaternKernel(nu=nu)).to(x)
    own.outputscale, own.base_kernel.lengthscale = OUTPUTSCALE, lengthscale
    return read_covariance(own(x))


def entries(form) -> Tensor:
    everything = torch.arange(form.size)
    block = form.block(everything, everything).double()
    return block.tril() + block.tril(-1).T


def parts(k: Tensor, noise: float, y: Tensor) -> tuple[float, float, Tensor]:
    """log|K + noise| / 2n, y^T (K + noise)^-1 y / 2n and the solve."""
    a = k.clone()
    a.diagonal().add_(noise)
    lower = torch.linalg.cholesky(a)
    solve = torch.cholesky_solve(y[:, None], lower)[:, 0]
    return float(lower.diagonal().log().mean()), 0.5 * float(y @ solve) / len(y), solve


def row(name: str, x: Tensor, y: Tensor, kernel: str, lengthscale: float, noise: float) -> dict[str, object]:
    narrow, wide = covariance(kernel, lengthscale, x.float()), covariance(kernel, lengthscale, x.float().double())
    rounding = PrecisionLimits.of(wide.diagonal() / noise, torch.float32).rounding
    predicted = rounding * size_of_entries(wide) * amplification(wide, torch.tensor(noise).double())
    log_det, quadratic, solve = parts(entries(wide), noise, y)
    found: dict[str, object] = {
        "set": name, "n": len(y), "kernel": kernel, "lengthscale": f"{lengthscale:.3g}", "noise": f"{noise:.0e}",
        "predicted": f"{predicted:.2e}", "limit": f"{PrecisionSettings().felt:.0e}",
        "quadratic": f"{2.0 * quadratic:.3g}",
    }  # fmt: skip
    try:
        rounded = parts(entries(narrow), noise, y)
    except torch.linalg.LinAlgError:
        return found | {"log_det_error": "indefinite", "quadratic_error": "indefinite", "solve_error": "indefinite"}
    return found | {
        "log_det_error": f"{abs(rounded[0] - log_det):.1e}",
        "quadratic_error": f"{abs(rounded[1] - quadratic):.1e}",
        "solve_error": f"{float((rounded[2] - solve).norm() / solve.norm()):.1e}",
    }


def prediction_row(
    name: str, x: Tensor, y: Tensor, kernel: str, lengthscale: float, noise: float, new: int
) -> dict[str, object]:
    """Means and variances at the last `new` points from the others. `mean_error` is in standard deviations of new
    observations."""
    n, x = len(y) - new, x.float()
    training = covariance(kernel, lengthscale, x[:n].double())
    predicted = felt_of_entries(training, torch.tensor(noise).double(), reach_of)(
        PrecisionLimits.of(training.diagonal() / noise, torch.float32).rounding
    )

    def moments(k: Tensor) -> tuple[Tensor, Tensor]:
        a = k[:n, :n].clone()
        a.diagonal().add_(noise)
        lower = torch.linalg.cholesky(a)
        half = torch.linalg.solve_triangular(lower, k[:n, n:], upper=False)
        return k[n:, :n] @ torch.cholesky_solve(y[:n, None], lower)[:, 0], k.diagonal()[n:] - half.square().sum(0)

    mean, variance = moments(entries(covariance(kernel, lengthscale, x.double())))
    found: dict[str, object] = {
        "set": name, "n": n, "kernel": kernel, "lengthscale": f"{lengthscale:.3g}", "noise": f"{noise:.0e}",
        "predicted": f"{predicted:.2e}", "limit": f"{PrecisionSettings().prediction_felt:.0e}",
    }  # fmt: skip
    try:
        rounded = moments(entries(covariance(kernel, lengthscale, x)))
    except torch.linalg.LinAlgError:
        return found | {"variance_error": "indefinite", "mean_error": "indefinite"}
    return found | {
        "variance_error": f"{float(((rounded[1] - variance).abs() / variance).max()):.1e}",
        "mean_error": f"{float(((rounded[0] - mean).abs() / (variance + noise).sqrt()).max()):.1e}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default="us-airports,precipitation,kin40k,protein,pol,elevators")
    parser.add_argument("--points", type=int, default=2500)
    parser.add_argument("--predictions", type=int, help="of so many of the points, from the others")
    options = parser.parse_args()
    rows = []
    for name in options.sets.split(","):
        data = rtgp.datasets.load(name)
        data = data.subset(min(options.points, len(data.y)), seed=0)
        spread = np.where(data.X.std(0) > 0, data.X.std(0), 1.0)
        x, y = torch.tensor((data.X - data.X.mean(0)) / spread), torch.tensor(data.y).double()
        y = (y - y.mean()) / y.std()
        new, long = options.predictions, math.sqrt(x.shape[1] / 2)  # a lengthscale of 1 in two dimensions
        if new:
            cases = product(KERNELS, (0.3, 3.0), (1e-5, 1e-3, 1e-2, 1e-1))
            rows += [prediction_row(name, x, y, k, short * long, noise, new) for k, short, noise in cases]
            continue
        cases = product(KERNELS, (0.3, 3.0), (1e-6, 1e-5, 1e-4))
        rows += [row(name, x, y, kernel, short * long, noise) for kernel, short, noise in cases]
        print(name, flush=True)
    record.append("float32_predictions" if options.predictions else "float32", rows)


if __name__ == "__main__":
    main()
