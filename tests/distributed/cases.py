"""What the ranks do in the tests; the same functions run in one process for comparison."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

import gp_models
import rtgp
import rtgp._baselines.poe.batch as expert_batch
import rtgp._estimator.regressor  # so that no rank has to load scikit-learn
import rtgp._objectives.krylov as krylov
from gp_models import airports, make
from rtgp import distributed
from rtgp._kernels import read_kernel
from rtgp._preconditioners import LowRank, PivotedCholesky
from rtgp._preconditioners.policy import Policy
from rtgp._solvers import NoiseUnits
from rtgp.distributed import _environment
from rtgp.errors import InputError
from rtgp.operators._choose import make_from_form
from rtgp.operators._product import stored_product
from rtgp.training._problem import Problem
from rtgp.training._progress import Progress
from rtgp.training._session import Session

N = 203  # odd, and not a multiple of 2 or 3


def array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()


def model_of(n: int = N, kind: str = "rbf", dtype: torch.dtype = torch.float64) -> Any:
    X, y = airports(n, dtype=dtype)
    kernels = {
        "rbf": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)),
        "sum": lambda: (
            gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2))
            + gpytorch.kernels.ScaleKernel(gpytorch.kernels.RQKernel())
        ),
    }
    return make(X, y, kernel=kernels[kind]())


def products(operator: str, n: int, kind: str) -> dict[str, np.ndarray]:
    """Everything a kernel operator offers, with small tiles."""
    model = model_of(n, kind)
    (X,) = model.train_inputs
    form = read_kernel(model.kernel, X)
    made: Any = make_from_form(form, operator)
    made.tile = 16
    generator = torch.Generator().manual_seed(n)
    u, v = (torch.randn(n, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    value = made.bilinear(u, v)
    gradients = torch.autograd.grad(value, list(model.kernel.parameters()))
    return {
        "matmul": array(made.matmul(v)),
        "wide": array(made.wide_matmul(v)),
        "bilinear": array(value),
        "gradient": np.concatenate([array(g).reshape(-1) for g in gradients]),
        "diagonal": array(made.diagonal()),
        "rows": array(made.rows(torch.tensor([0, n // 2, n - 1]))),
        "derivatives": array(made.derivative_matmul(v)),
        "cross": array(made.cross(X[:5] + 0.1).matmul(v)),
    }


def stored_numbers(n: int) -> tuple[int, int]:
    """What this rank keeps of K and of the preconditioner's factor."""
    model = model_of(n)
    made: Any = make_from_form(read_kernel(model.kernel, model.train_inputs[0]), "sharded:dense")
    system = NoiseUnits(made, torch.tensor(0.1))
    upkeep = Policy(PivotedCholesky(10), None, 11)
    preconditioner: Any = upkeep.preconditioner(system, torch.Generator().manual_seed(0), keep=False)[0]
    return made.stored_bytes // 8, preconditioner.basis.numel()


def low_rank_products(spread: bool, n: int = 31, k: int = 5) -> dict[str, np.ndarray]:
    """What a low-rank preconditioner offers, of which every rank holds its own rows; made, and read back."""
    generator = torch.Generator().manual_seed(0)
    factor, v = (torch.randn(n, columns, dtype=torch.float64, generator=generator) for columns in (k, 3))
    group = distributed.world() if spread else distributed.Group.alone()
    made = LowRank(factor[group.own(n)], torch.float64, group, n)
    again = LowRank.from_state_dict(made.state_dict(), torch.float64, group, n)
    found = {name: array(value) for name, value in made.state_dict().items()}
    for name, one in (("made", made), ("again", again)):
        found[f"{name}, whiten"] = array(one.whiten(v))
        found[f"{name}, transposed"] = array(one.whiten_transpose(v))
        found[f"{name}, solve"] = array(one.solve(v)[0])
        found[f"{name}, squares"] = array(one.solve(v)[1])
        found[f"{name}, diagonal"] = array(one.inverse_diagonal())
        found[f"{name}, logdet"] = array(one.logdet())
    return found


def method_of(name: str, operator: str) -> Any:
    return {
        "cg": rtgp.CG(iterations=25, operator=operator),
        "cg 3": rtgp.CG(iterations=3, operator=operator),
        "rr-cg": rtgp.RRCG(operator=operator),
        "neighbours": rtgp.RRCG(operator=operator, preconditioner=rtgp.Neighbours(6)),
        "low rank and neighbours": rtgp.RRCG(operator=operator, preconditioner=rtgp.LowRankAndNeighbours(9, 6)),
        "paper": rtgp.RRCG.paper(operator=operator, truncation=rtgp.truncation.ExponentialDecay(0.3, 8)),
    }[name]


def estimates(name: str, operator: str, kind: str = "rbf", calls: int = 2) -> dict[str, np.ndarray]:
    """Value, gradient, contrast and information of a few calls; the later ones begin where the earlier ended."""
    model = model_of(N, kind)
    generator = torch.Generator().manual_seed(3)
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method_of(name, operator), generator)
    trained = [p for p in mll.parameters() if p.requires_grad]
    found: dict[str, np.ndarray] = {}
    for call in range(calls):
        evaluated = mll.evaluate(model(*model.train_inputs), model.train_targets, contrast=True, information=1e-3)
        gradients = torch.autograd.grad(evaluated.objective, trained, retain_graph=True)
        found[f"gradient {call}"] = np.concatenate([array(g).reshape(-1) for g in gradients])
        found[f"value {call}"] = array(evaluated.objective)
        if evaluated.contrast is not None:
            parts = torch.autograd.grad(evaluated.contrast, trained, allow_unused=True)
            found[f"contrast {call}"] = np.concatenate([array(g).reshape(-1) for g in parts if g is not None])
        found[f"information {call}"] = array(evaluated.information)
        with torch.no_grad():
            for parameter in trained:
                parameter += 0.02
    return found


def predictions(operator: str) -> dict[str, np.ndarray]:
    model = model_of()
    X = torch.linspace(-2.0, 2.0, 34, dtype=torch.float64).reshape(17, 2)
    at = rtgp.posterior(model, model.likelihood, method="cg", tolerance=1e-8, operator=operator)
    generator = torch.Generator().manual_seed(5)
    return {
        "mean": array(at.mean(X)),
        "variance": array(at.variance(X)),
        "covariance": array(at.covariance(X)),
        "sample": array(at.sample(X, 3, generator=generator)),
    }


STEPS = 7


def trained(
    operator: str, optimizer: str = "average-information", folder: str | None = None, fault: str = "", seed: int = 0
) -> np.ndarray:
    """The parameters after `STEPS` steps. fault: what happens on the last rank after the fifth."""
    model = model_of(120)
    (X,), y = model.train_inputs, model.train_targets

    def callback(row: Any, _: Any) -> bool:
        last = distributed.active() and distributed.world().rank == distributed.world().size - 1
        if not last or row["step"] != 4:
            return False
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "busy":
            time.sleep(1000.0)
        if fault == "error":
            raise MemoryError("no memory is left")
        return fault == "stop"

    rtgp.fit(
        model, model.likelihood, X, y, method_of("rr-cg", operator), optimizer, STEPS,
        checkpoint=folder, checkpoint_every=2, callback=callback, subset_start=60, tolerance=1e-9, seed=seed,
    )  # fmt: skip
    return np.concatenate([array(p).reshape(-1) for p in model.parameters()])


def trained_apart(what: str) -> np.ndarray:
    """The last rank has something else than the others."""
    last = distributed.world().rank == distributed.world().size - 1
    if what == "seed":
        return trained("sharded", seed=int(last))
    if what == "method" and last:
        return trained("sharded:tiled", optimizer="adam")
    if what == "version" and last:
        _environment.__version__ = "0.0"
    if what == "data" and last:
        original = gp_models.airports
        globals()["airports"] = lambda n, **kw: original(n, seed=1, **kw)
    return trained("sharded")


def product_of_different_vectors() -> None:
    """One bit of one right-hand side differs."""
    model = model_of(21)
    made = make_from_form(read_kernel(model.kernel, model.train_inputs[0]), "sharded")
    v = torch.ones(21, 2, dtype=torch.float64)
    if distributed.world().rank == 1:
        v[20, 1] += 1e-15
    made.matmul(v)


def steps_apart(what: str) -> None:
    """After a step the last rank is elsewhere, or has drawn more than the others."""
    model = model_of(21)
    (X,), y = model.train_inputs, model.train_targets
    problem = Problem(model, model.likelihood, X, y, method_of("rr-cg", "sharded"), 0)
    session = Session(problem, None, None, 10, Progress(False, 1), distributed.world())
    if distributed.world().rank == 1 and what == "parameters":
        problem.move_to(problem.point + 1e-12)
    if distributed.world().rank == 1 and what == "generator":
        torch.rand(1, generator=problem.generator)
    session._agreed(False)


def enumerated(rule: str, case: str) -> None:
    """The suite of exact enumeration, with K spread over ranks."""
    import objectives.test_enumeration as suite

    plain = suite.settings
    suite.settings = lambda *args: replace(plain(*args), operator="sharded:dense")
    suite.RULES["steps"] = rtgp.truncation.Tabulated([0.5 ** (j // 6) for j in range(suite.N + 10)])  # few truncations
    krylov.draw_probes = suite.all_directions
    suite.test_coupled_pair_has_the_exact_expectation(suite.RULES[rule], suite.CASES[case])
    suite.test_plain_cg_fails_the_same_check()


def z_scores(name: str, draws: int) -> np.ndarray:
    """Mean of gradient and value minus the exact ones, in standard errors."""
    model = model_of(101)
    wanted = rtgp.MarginalLogLikelihood(model.likelihood, model, "cholesky")
    generator = torch.Generator().manual_seed(1)
    method = method_of(name, "sharded:dense")
    mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator)
    samples = np.stack([_estimate(model, mll) for _ in range(draws)])
    scatter = np.maximum(samples.std(0, ddof=1) / draws**0.5, 1e-12)
    return (samples.mean(0) - _estimate(model, wanted)) / scatter


def _estimate(model: Any, mll: Any) -> np.ndarray:
    value = mll(model(*model.train_inputs), model.train_targets)
    gradients = torch.autograd.grad(value, list(model.parameters()))
    return np.concatenate([array(value).reshape(1), *(array(g).reshape(-1) for g in gradients)])


def everything(name: Callable[[str], str]) -> dict[str, dict[str, np.ndarray]]:
    """All that is compared with one process; name: from a local operator's to the one that is tried."""
    return {
        "dense, rbf": products(name("dense"), 101, "rbf"),
        "tiled, a sum of kernels": products(name("tiled"), 101, "sum"),
        "fewer points than ranks": products(name("tiled"), 2, "rbf"),
        "gradients of cg": estimates("cg", name("dense")),
        "gradients of rr-cg": estimates("rr-cg", name("dense")),
        "gradients of the paper's rr-cg": estimates("paper", name("dense")),
        "gradients of rr-cg, tiled, a sum of kernels": estimates("rr-cg", name("tiled"), "sum", calls=1),
        "posterior": predictions(name("dense")),
    }


def spread(local: str) -> str:
    return f"sharded:{local}"


def everything_spread() -> dict[str, dict[str, np.ndarray]]:
    return everything(spread)


def experts(operator: str, n: int, size: int, known: bool = False, steps: int = 8, **changes: Any) -> dict[str, Any]:
    """A product of experts, trained; what it predicts, and how many experts this rank has factors of."""
    X, y = (array(part) for part in airports(n + 19))
    noise = np.linspace(0.05, 0.2, n) if known else None
    settings: dict[str, Any] = {"random_state": 0, "dtype": "float64", "steps": steps, **changes}
    gp = rtgp.GPRegressor(method=rtgp.POE(size, operator), **settings).fit(X[:n], y[:n], noise)
    mean, std = gp.predict(X[n:], return_std=True)
    found = {name: np.array(gp.history_.column(name)) for name in gp.history_.columns if name != "seconds"}
    found["parameters"] = np.concatenate([array(p).reshape(-1) for p in gp.model_.parameters()])
    found["loss at the end"] = np.array(gp.log_marginal_likelihood_value_)
    return {**found, "mean": mean, "std": std, "held": len(gp._posterior()._experts)}


# Five experts; seven, with known noise; and two, fewer than three ranks.
EXPERTS = {"five": (101, 21, False), "seven": (70, 10, True), "two": (30, 15, False)}


def all_experts(operator: str) -> dict[str, dict[str, Any]]:
    return {name: experts(operator, *how) for name, how in EXPERTS.items()}


def fitted_experts(operator: str) -> Any:
    X, y = airports(151)
    settings: dict[str, Any] = {"random_state": 0, "dtype": "float64", "steps": 5}
    return rtgp.GPRegressor(method=rtgp.POE(31, operator), **settings).fit(array(X), array(y))


def saved_experts(folder: str) -> str:
    gp = fitted_experts("sharded")
    if distributed.world().first:
        gp.save(f"{folder}/model")
    return repr(gp.method_)


def experts_apart(what: str) -> None:
    """The last rank has another seed, a harmful learning rate, or other points to ask about."""
    last = distributed.world().rank == distributed.world().size - 1
    if what == "seed":
        experts("sharded", 30, 10, random_state=int(last))
    if what == "steps":
        experts("sharded", 30, 10, steps=3 + last)
    if what == "indefinite" and last:
        expert_batch.torch = _WithoutCholesky()
    if what == "NaN" and last:
        expert_batch.math = _WithoutLogarithm()
    if what in ("indefinite", "NaN"):
        experts("sharded", 30, 10)
    if what == "points":
        X, y = airports(30)
        gp = rtgp.GPRegressor(method=rtgp.POE(10, "sharded"), random_state=0, steps=2).fit(array(X), array(y))
        gp.predict(array(X)[: 5 - last])


class _WithoutCholesky:
    """torch, but for a factorisation that finds the last matrix indefinite."""

    def __init__(self) -> None:
        self.linalg = self

    def cholesky_ex(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        factor, info = torch.linalg.cholesky_ex(matrix)
        info[-1] = 3
        return factor, info

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _WithoutLogarithm:
    """math, but for a logarithm that is not a number."""

    pi = nan = float("nan")

    @staticmethod
    def log(_: float) -> float:
        return float("nan")


def from_the_first(what: str) -> tuple[str, bool]:
    """What one rank makes for all, or an error that it meets; and whether starting again is the same group."""
    group = distributed.world()

    def make() -> str:
        if what == "first" or what == "all":
            raise InputError(f"made by rank {group.rank}" if what == "first" else "the same everywhere")
        if what == "last" and group.rank == group.size - 1:
            raise InputError(f"only rank {group.rank}")
        return f"rank {group.rank}"

    made = group.together(make) if what in ("all", "last") else group.from_first(make)
    return made, distributed.start() is group


COST_RANK, COST_PROBES = 64, 10


def measured(n: int) -> dict[str, float]:
    """Seconds of an iteration as it happens within an estimate, and of the pieces the model of costs is made of."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 3, generator=generator)
    y = torch.sin(X[:, 0]) + 0.1 * torch.randn(n, generator=generator)
    model = make(X, y)
    r, group = COST_PROBES + 2, distributed.world()
    v = torch.randn(n, r, generator=generator)
    rows: Any = make_from_form(read_kernel(model.kernel, X), "sharded:dense")
    own, factor = rows._rows.matmul(v), torch.randn(COST_RANK, len(v[group.own(n)]), generator=generator)
    found = {
        "product": _best(lambda: rows._rows.matmul(v)),
        "pass": _best(lambda: v.square().sum(0, dtype=torch.float64)) / 3,  # read, written, read
        "factor": _best(lambda: stored_product(factor, v[group.own(n)])),
        "gather": _best(lambda: group.gather_rows(own, n)),
    }

    def estimate(iterations: int) -> float:
        preconditioner = rtgp.PivotedCholesky(COST_RANK, "random")
        method = rtgp.CG(
            iterations, COST_PROBES, preconditioner, refresh=100, tolerance=1e-30, operator="sharded:dense"
        )
        mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, torch.Generator().manual_seed(0))
        with torch.no_grad():
            mll(model(X), y)
            return _best(lambda: mll(model(X), y), 3)

    few, many = 5, 35
    found["iteration"] = (estimate(many) - estimate(few)) / (many - few)
    return found


def _best(function: Callable[[], object], repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        distributed.world().objects(0)  # together
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)
