"""A log-determinant and a solve outside Gaussian processes: the precision matrix of a random field on a grid.

A = kappa^2 I + L, with L the Laplacian of a grid, is known by its products only. Look at the column "errors off": the
mean of the estimates lies within about two standard errors of the exact value, for log|A|, for its derivative, and
for a solve. The solve asks what a source at one edge does at the other. A product carries it one cell further, so
that conjugate gradients that stop after as many products as an estimate takes say 0 there, in every run. A few of the
estimates go on, with weights that make up for all others.

    python examples/log_determinant.py
"""

from __future__ import annotations

import math
import sys

import torch
from matplotlib.figure import Figure
from torch import Tensor

import rtgp

SIDE = 50
KAPPA = 0.05
ESTIMATES = 200


class Products:
    """v -> A v for the grid, counted."""

    def __init__(self, kappa: Tensor) -> None:
        self.kappa, self.count = kappa, 0

    def __call__(self, v: Tensor) -> Tensor:  # (n, r) -> (n, r)
        self.count += 1
        field = v.reshape(SIDE, SIDE, -1)
        result = (4.0 + self.kappa**2) * field
        result[1:] -= field[:-1]
        result[:-1] -= field[1:]
        result[:, 1:] -= field[:, :-1]
        result[:, :-1] -= field[:, 1:]
        return result.reshape(v.shape)


def eigenvalues() -> Tensor:
    """Of L: sums of those of a path of SIDE points with fixed ends."""
    one = 2.0 - 2.0 * torch.cos(math.pi * torch.arange(1, SIDE + 1, dtype=torch.float64) / (SIDE + 1))
    return (one[:, None] + one).reshape(-1)


def show(name: str, values: list[float], exact: float) -> None:
    """The mean of independent estimates beside the exact value."""
    sample = torch.tensor(values, dtype=torch.float64)
    mean, error = float(sample.mean()), float(sample.std()) / math.sqrt(len(values))
    print(f"{name:24} {mean:10.2f} +- {error:5.2f} {exact:10.2f} {(mean - exact) / error:+12.1f}")


def log_determinants(A: Products, generator: torch.Generator) -> tuple[list[float], list[float]]:
    """Estimates of log|A| and of its derivative in kappa, from one probe each."""
    values, slopes = [], []
    for _ in range(ESTIMATES):
        value = rtgp.logdet(A, probes=1, size=SIDE * SIDE, dtype=torch.float64, generator=generator)
        (slope,) = torch.autograd.grad(value, A.kappa)
        values.append(value.item())
        slopes.append(slope.item())
    return values, slopes


def stopped(A: Products, b: Tensor, iterations: int) -> Tensor:
    """Conjugate gradients on A x = b that stop after so many products."""
    x, r = torch.zeros_like(b), b.clone()
    d, square = r.clone(), r @ r
    for _ in range(iterations):
        product = A(d[:, None])[:, 0]
        step = square / (d @ product)
        x, r = x + step * d, r - step * product
        d, square = r + (r @ r) / square * d, r @ r
    return x


def picture(values: list[float], exact: float) -> Figure:
    """Estimates of log|A|, their mean, and the truth."""
    figure = Figure(figsize=(6.0, 3.0), layout="constrained")
    axes = figure.add_subplot()
    axes.hist(values, bins=30, color="#1f6fb4", alpha=0.7)
    axes.axvline(sum(values) / len(values), color="#1a1d21", linewidth=2.4, label="their mean")
    axes.axvline(exact, color="#c4561a", linewidth=1.4, linestyle="--", label="exact")
    axes.set_xlabel("estimate of log|A|, one probe each")
    axes.legend(frameon=False, fontsize=9)
    return figure


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    A = Products(torch.tensor(KAPPA, dtype=torch.float64, requires_grad=True))
    spectrum = KAPPA**2 + eigenvalues()
    print(f"{SIDE} x {SIDE} grid, means of {ESTIMATES} estimates")
    print(f"{'':24} {'mean':>10} {'':8} {'exact':>10} {'errors off':>12}")
    values, slopes = log_determinants(A, generator)
    show("log|A|", values, spectrum.log().sum().item())
    show("its derivative in kappa", slopes, (2.0 * KAPPA / spectrum).sum().item())
    print(f"{A.count / ESTIMATES:.0f} products with A in each")

    A = Products(torch.tensor(KAPPA, dtype=torch.float64))
    source = torch.zeros(SIDE, SIDE, dtype=torch.float64)
    source[SIDE // 2, 0] = 1e6
    b, opposite = source.reshape(-1), SIDE // 2 * SIDE + SIDE - 1
    exact = stopped(A, b, 8 * SIDE)[opposite].item()  # far beyond convergence
    A.count, rule = 0, rtgp.truncation.ExponentialDecay(rate=0.05, minimum=20)
    solves = [rtgp.solve(A, b, rule, generator=generator)[opposite].item() for _ in range(ESTIMATES)]
    show("A^-1 b at the other edge", solves, exact)
    products = round(A.count / ESTIMATES)
    found = stopped(A, b, products)[opposite].item()
    print(f"{products} products with A in each; conjugate gradients that stop there say {found:.2f}")
    if len(sys.argv) > 1:
        picture(values, spectrum.log().sum().item()).savefig(sys.argv[1], dpi=80)


if __name__ == "__main__":
    main()
