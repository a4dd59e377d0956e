"""One cell of the stress matrix: data, hyperparameters, precision and method; what came out, against the exact."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.models import ExactGP
from torch import Tensor

import rtgp
import rtgp._objectives.krylov as krylov
from rtgp._traces import Probes
from rtgp.errors import PrecisionWarning, RTGPError
from rtgp.training._problem import Problem
from rtgp.truncation import ResidualDriven
from stress.exact import Exact, Hyperparameters, grid, on_grid, repeated, scattered, with_stranger

FAR = 1e6  # how far an outlier lies, in x or in y
FLOOR = 1e-18  # of the noise
SHAPES = {300: (15, 20), 500: (20, 25), 2000: (40, 50), 20000: (140, 143)}  # of the grids
KINDS = ("grid", "six inputs", "scattered", "duplicates", "outlier in x", "outlier in y")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
LIMIT = {"float32": 1e6, "float64": 1e14}  # of the condition number: up to it an answer must be right
TOLERANCE = {"float32": 1e-2, "float64": 1e-6}  # of value and gradient, relative to the size of their terms
PER_CONDITION = 3e-17  # in float64, times the condition number, where that is more
TAU = 1e-6  # of the roulette: hardly anything is cut off, so that what is left is rounding
CALLS = 10  # of a method that draws random probes
# Standard errors beyond the bound that an estimate may be off by. False alarm: |t| > 6 with 9 degrees of freedom has
# probability 2e-4 for each of the 7 numbers of a cell, 3% for a new seed over the 19 cells that draw random probes.
ALARM = 6.0
ALL_DIRECTIONS = 2500  # points up to which the probes are all directions, so that no trace scatters
TEN_PROBES = " with ten probes"  # at the end of a method's name: random ones, whatever the number of points


@dataclass(frozen=True)
class Cell:
    n: int
    data: str
    lengthscale: float
    noise: float
    dtype: str
    method: str

    @property
    def condition(self) -> float:
        """An upper bound of the condition number of K + noise: 1 + n outputscale / noise."""
        return 1.0 + self.n / self.noise

    @property
    def tolerance(self) -> float:
        least = TOLERANCE[self.dtype]
        return max(least, PER_CONDITION * min(self.condition, LIMIT["float64"])) if self.dtype == "float64" else least


@dataclass(frozen=True)
class Result:
    """outcome: "right", "no answer" (its own standard error is too large for the bound), "wrong", "warned" (wrong, and
    a PrecisionWarning said so), the name of an error, or "not converged" (plain CG, whose statistics say so)."""

    outcome: str
    worked_in: str = ""  # the precision of the computation itself
    value_error: float = math.nan  # relative to the size of the terms
    gradient_error: float = math.nan  # in norm, relative to that of the terms; of the mean by itself
    standard_error: float = math.nan  # of these two, the larger: what random probes leave open
    iterations: int = 0
    words: str = ""  # of an error


class Model(ExactGP):
    """Constant mean, scaled RBF kernel with a lengthscale for each input: GPyTorch's own parameters and constraints."""

    def __init__(self, x: Tensor, y: Tensor, lengthscale: float, noise: float) -> None:
        super().__init__(x, y, GaussianLikelihood(noise_constraint=GreaterThan(FLOOR)))
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(RBFKernel(ard_num_dims=x.shape[1]))
        self.to(x.dtype)
        self.covar_module.base_kernel.lengthscale = torch.tensor([lengthscale, *[1.5 * lengthscale] * (x.shape[1] - 1)])
        self.covar_module.outputscale = 1.0
        self.likelihood.noise = noise
        self.mean_module.constant.data.fill_(0.25)
        self.train()

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def hyperparameters(self) -> Hyperparameters:
        """As the precision of the model holds them."""
        first, second = self.covar_module.base_kernel.lengthscale.detach().double().reshape(-1).tolist()[:2]
        outputscale, noise = self.covar_module.outputscale.detach(), self.likelihood.noise.detach()
        mean = self.mean_module.constant.detach()
        return Hyperparameters((first, second), float(outputscale), float(noise), float(mean))


@dataclass(frozen=True)
class Data:
    """Numbers that float32 holds exactly: both precisions are given the same problem."""

    kind: str
    a: np.ndarray
    b: np.ndarray
    x: np.ndarray
    y: np.ndarray

    def exact(self, at: Hyperparameters) -> Exact:
        if self.kind == "scattered":
            return scattered(self.x, self.y, at)
        if self.kind == "duplicates":
            return repeated(self.a, self.b, self.y.reshape(3, -1), at)
        if self.kind == "outlier in x":
            return with_stranger(on_grid(self.a, self.b, self.y[:-1], at), float(self.y[-1]), at)
        return on_grid(self.a, self.b, self.y, at)


def make_data(n: int, kind: str, seed: int = 0) -> Data:
    """Inputs between 0 and 1, targets of size one. `duplicates`: every point three times, n of them in all. `six
    inputs`: four more, all of them constant, so that distances are formed as for many inputs."""
    rng = np.random.default_rng(seed)
    p, q = SHAPES[n]
    if kind == "duplicates":
        q = max(2, round(q / 3))

    def numbers(*shape: int) -> np.ndarray:
        return rng.random(shape).astype(np.float32).astype(np.float64)

    a, b = np.sort(numbers(p)), np.sort(numbers(q))
    x = numbers(p * q, 2) if kind == "scattered" else grid(a, b)
    if kind == "duplicates":
        x = np.tile(x, (3, 1))
    y = np.sin(6 * x[:, 0]) + x[:, 1] + 0.3 * rng.standard_normal(len(x))
    if kind == "outlier in x":
        x, y = np.concatenate([x, [[FAR, -FAR]]]), np.append(y, 1.0)
    if kind == "outlier in y":
        y[len(y) // 3] = FAR
    if kind == "six inputs":
        x = np.concatenate([x, np.full((len(x), 4), 0.5)], axis=1)
    return Data(kind, a, b, x, y.astype(np.float32).astype(np.float64))


def method_of(name: str, n: int, probes: int = 10) -> Any:
    """CG with preconditioner and probes of RR-CG, and iterations enough to end: so that it has a right answer."""
    rank = rtgp.PivotedCholesky(rtgp.PivotedCholesky().rank_for(n, 12))  # whatever the probes, that for ten
    name = name.removesuffix(TEN_PROBES)
    if name == "cg":
        return rtgp.CG(300, probes, rank, "preconditioner")
    return rtgp.RRCG(ResidualDriven(TAU), probes, rank) if name == "rr-cg" else rtgp.Cholesky()


def _all_directions(kind: str, n: int, count: int, preconditioner: Any, *others: Any) -> Probes:
    """The n columns of sqrt(n) I: the mean of e e^T over them is I itself."""
    e = torch.eye(n, dtype=torch.float64) * math.sqrt(n)
    dtype = others[1]
    return Probes(e.to(dtype), preconditioner.whiten_transpose(e).to(dtype))


@contextmanager
def probing_all_directions() -> Iterator[None]:
    """Within it, CG and RR-CG with n probes have the exact trace and log-determinant, up to rounding and truncation."""
    before = krylov.draw_probes
    krylov.draw_probes = _all_directions
    try:
        yield
    finally:
        krylov.draw_probes = before


def evaluate(cell: Cell, data: Data, calls: int = CALLS) -> Result:
    """Value and gradient at the cell's hyperparameters, as training would see them."""
    x, y = (torch.tensor(one, dtype=DTYPES[cell.dtype]) for one in (data.x, data.y))
    model = Model(x, y, cell.lengthscale, cell.noise)
    wanted = data.exact(model.hyperparameters())
    n, found, last = len(y), [], None
    all_directions = n <= ALL_DIRECTIONS and not cell.method.endswith(TEN_PROBES)
    method = method_of(cell.method, n, n if all_directions else 10)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            probing_all_directions() if all_directions else nullcontext(),
        ):
            warnings.simplefilter("always", PrecisionWarning)
            for seed in range(1 if all_directions or cell.method == "cholesky" else calls):
                problem = Problem(model, model.likelihood, x, y, method, seed)
                evaluation = problem.evaluate()
                last = evaluation.stats
                gradient = dict(zip(problem.parameters, _split(evaluation.gradient, problem), strict=True))
                found.append(np.array([evaluation.loss, *_ordered(gradient), last.quadratic / n]) * n)
    except RTGPError as error:
        return Result(type(error).__name__, words=str(error))
    warned = any(issubclass(one.category, PrecisionWarning) for one in caught)
    return _judged(cell, np.stack(found), wanted, last, n, warned)


def _split(gradient: Tensor, problem: Problem) -> list[Tensor]:
    return list(torch.split(gradient, [p.numel() for p in problem.parameters.values()]))


def _ordered(gradient: dict[str, Tensor]) -> list[float]:
    """Lengthscales, outputscale, noise, mean."""
    ends = ("raw_lengthscale", "raw_outputscale", "raw_noise", "constant", "raw_constant")
    found = {end: one for name, one in gradient.items() for end in ends if name.endswith("." + end)}
    return [value for end in ends if end in found for value in found[end].tolist()[:2]]  # of lengthscales two matter


def judged(error: np.ndarray, standard_error: np.ndarray, bound: float) -> str:
    """ "wrong": some number is off by more than its bound and ALARM standard errors. "no answer": not that, but ALARM
    standard errors are more than the bound, so that a wrong number could pass. "right": every number is within twice
    its bound, and within the bound itself where nothing scatters."""
    if not (error <= bound + ALARM * standard_error).all():  # NaN is wrong
        return "wrong"
    return "right" if (ALARM * standard_error <= bound).all() else "no answer"


def _judged(cell: Cell, found: np.ndarray, wanted: Exact, stats: Any, n: int, warned: bool) -> Result:
    """found (calls, 7): value, five gradients, quadratic term."""
    noise = 1.0 - FLOOR / cell.noise  # the coordinate of training is the logarithm of the noise above its floor
    target = np.array([wanted.loss, *wanted.gradient, wanted.quadratic])
    target[4] *= noise
    size = np.array([abs(wanted.loss) + n, *wanted.scale, wanted.quadratic]) + 1e-300
    size[1:5] = np.linalg.norm(size[1:5])  # gradients in logarithms, by the norm of all their terms
    mean = found.mean(0)
    error = np.abs(mean - target) / size
    spread = found.std(0, ddof=1) / math.sqrt(len(found)) / size if len(found) > 1 else np.zeros_like(error)
    outcome = judged(error, spread, cell.tolerance)
    if outcome == "wrong" and warned:
        outcome = "warned"
    words = "" if outcome == "right" else f"errors {error}, standard errors {spread}"
    if cell.method.startswith("cg") and stats.frozen < stats.columns:
        outcome = "not converged"
    worked_in = str(stats.dtype).removeprefix("torch.")
    both = float(error[0]), max(float(np.linalg.norm(error[1:5])), float(error[5]))
    return Result(outcome, worked_in, *both, float(spread.max()), stats.iterations, words)


def fit_outcome(cell: Cell, data: Data, steps: int = 3) -> str:
    """ "finite", the name of an error, or which parameters are not numbers: after a few steps from the cell's point."""
    x, y = (torch.tensor(one, dtype=DTYPES[cell.dtype]) for one in (data.x, data.y))
    model = Model(x, y, cell.lengthscale, cell.noise)
    outcome = "finite"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)
            rtgp.fit(
                model, model.likelihood, x, y, method=method_of(cell.method, len(y)), steps=steps, subset_start=False
            )
    except RTGPError as error:
        outcome = type(error).__name__
    bad = [name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())]
    return f"not finite: {', '.join(bad)}" if bad else outcome


def row_of(cell: Cell, data: Data, calls: int = CALLS, steps: int = 3) -> dict[str, object]:
    """A row for benchmarks/results/stress.csv."""
    begin = time.perf_counter()
    result = evaluate(cell, data, calls)
    fitted = fit_outcome(cell, data, steps) if steps else "not tried"
    found: dict[str, object] = {**asdict(cell), "condition": f"{cell.condition:.1e}"}
    found |= {"outcome": result.outcome, "worked_in": result.worked_in}
    for key in ("value_error", "gradient_error", "standard_error"):
        found[key] = f"{getattr(result, key):.1e}"
    found |= {"iterations": result.iterations, "after_fit": fitted}
    return found | {"seconds": round(time.perf_counter() - begin, 2)}
