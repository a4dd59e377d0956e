"""What each part of `RRCG()` gains, at the hyperparameters that Cholesky finds and in whole trainings.

parts           Every part switched off by itself, and every part alone on top of the paper's.
preconditioners Each kind of preconditioner, and the one that is chosen, on pairs of set and kernel.

`noise`: what the noise of one gradient costs, half its square in the metric of the average information, per point.
`bias`: what the bias of the gradient costs in the same metric, which no number of steps averages out.
`noise_x_seconds`: that noise times the seconds of one evaluation. `seconds_to_optimum`: of a whole training run, from
the start that all runs share, until its exact objective is within 0.002 per point of the optimum for good; nan if it
never is. `seconds_to_begin`: of the first evaluation, which makes the preconditioner and tries candidates.

Everything is an argument: settings of a method and of a training. Nothing is patched.

    RTGP_DATA=folder python benchmarks/bench_ablation.py parts --sets pol,kin40k,elevators --limit 3000
    RTGP_DATA=folder python benchmarks/bench_ablation.py preconditioners --only us-airports:matern12
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import bench_time_to_optimum as whole
import record
import torch
from bench_time_to_optimum import exact_objective, load, new_model, seconds_to

import rtgp
from rtgp._estimator.model import new_model as regression_model
from rtgp._objectives.control_coefficients import by_cost
from rtgp._objectives.protocol import EstimateStats
from rtgp.training._problem import Problem
from rtgp.training._switch_to_cholesky import SwitchSettings
from rtgp.truncation import ExponentialDecay, ResidualDriven

PARTS, PRECONDITIONERS = "ablation", "ablation_preconditioners"
FELT = 1e-8  # part of the largest information below which a hyperparameter has none
WEAK = rtgp.PivotedCholesky(5, "greedy")
STRONG = rtgp.PivotedCholesky()
PAPER = rtgp.RRCG.paper
# name -> (settings, optimizer)
OFF = {
    "everything": (rtgp.RRCG(), "auto"),
    "without the strong preconditioner (rank 5)": (rtgp.RRCG(preconditioner=WEAK), "auto"),
    "without keeping the preconditioner (made at every step)": (rtgp.RRCG(refresh=1), "auto"),
    "without the warm start": (rtgp.RRCG(warm_start=False), "auto"),
    "without the residual-driven rule (rate .05, minimum 80)": (
        rtgp.RRCG(truncation=ExponentialDecay(rate=0.05, minimum=80)),
        "auto",
    ),
    "without the coupling (three truncations)": (rtgp.RRCG(coupling="independent"), "auto"),
    "without the control variate": (rtgp.RRCG(control_variate=False), "auto"),
    "without probes of covariance P (Rademacher)": (rtgp.RRCG(probe_kind="rademacher"), "auto"),
    "without Newton steps (Adam 0.1)": (rtgp.RRCG(), "adam"),
}
ALONE = {
    "the paper's setting": (PAPER(), "adam"),
    "paper + strong preconditioner": (PAPER(preconditioner=STRONG, refresh=None), "adam"),
    "paper + warm start": (PAPER(warm_start=True), "adam"),
    "paper + residual-driven rule": (PAPER(truncation=ResidualDriven()), "adam"),
    "paper + coupling": (PAPER(coupling="max"), "adam"),
    "paper + probes of covariance P": (PAPER(probe_kind="preconditioner"), "adam"),
    "paper + Newton steps": (PAPER(), "average-information"),
}


def without_roulette(iterations: int) -> rtgp.CG:
    """Plain CG with every other part of `RRCG()`, of the same cost."""
    return rtgp.CG(iterations, 10, STRONG, "preconditioner", refresh=None, warm_start=True)


KINDS = {
    "none": None,
    "low rank": rtgp.PivotedCholesky(),
    "32 neighbours": rtgp.Neighbours(32),
    "low rank and neighbours": rtgp.LowRankAndNeighbours(),
    "chosen": rtgp.RRCG().preconditioner,
}
PAIRS = (
    ("us-airports", "matern12"),
    ("us-airports", "matern32"),
    ("precipitation", "matern32"),
    ("protein", "rbf"),
    ("pol", "rbf"),
    ("kin40k", "rbf"),
    ("kin40k", "matern32"),
    ("elevators", "rbf"),
)
# A run is measured to its end, however long: nothing takes its place.
TO_THE_END = SwitchSettings(most=10**9, patience=1e9)


@dataclass(frozen=True)
class Drawn:
    """Gradient estimates (count, p) at one point, and what they took."""

    gradients: torch.Tensor
    seconds: float  # of one
    seconds_to_begin: float
    iterations: float  # of one
    last: EstimateStats


def drawn(model, method, count: int, before: int, seed: int, learning: bool = False) -> Drawn:
    """Estimates at the model's hyperparameters. The first `before` evaluations are not counted: they make the
    preconditioner and the warm start. learning: as in Newton's training, where the scatter of a gradient is known too,
    and teaches how much of the control variate is taken."""
    problem = Problem(
        model, model.likelihood, *model.train_inputs, model.train_targets, method, seed, switch=TO_THE_END
    )
    found, seconds, iterations = [], [], []
    for call in range(before + count):
        begin = time.perf_counter()
        one = problem.evaluate(contrast=learning, information=0.03 if learning and call < before else None)
        if model.train_targets.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        found.append(one.gradient)
        iterations.append(one.stats.iterations)
    problem.mll.release()
    return Drawn(
        torch.stack(found[before:]),
        statistics.fmean(seconds[before:]),
        seconds[0],
        statistics.fmean(iterations[before:]),
        one.stats,
    )


def exact_gradient(model) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient (p,) and average-information matrix (p, p), exact, of a model in float64."""
    problem = Problem(model, model.likelihood, *model.train_inputs, model.train_targets, rtgp.Cholesky(), 0)
    one = problem.evaluate(information=1e-3)
    assert one.information is not None
    return one.gradient, one.information


def costs(found, exact, metric) -> tuple[float, float]:
    """1/2 E|noise|^2 and 1/2 |bias|^2 in the inverse metric, per point; the bias less what noise alone would show.

    Without the hyperparameters on which nothing depends (lengthscales that have gone to infinity): their gradients are
    so small that float32 takes them for zero, and divided by as small a metric that would count as a bias.
    """
    felt = metric.diagonal() > FELT * metric.diagonal().max()
    root = by_cost(metric[felt][:, felt])  # as the objective measures its own noise
    centred = (found - found.mean(0))[:, felt] @ root.T
    noise = 0.5 * float(centred.square().sum() / (len(found) - 1))
    bias = 0.5 * float((root @ (found.mean(0) - exact)[felt]).square().sum())
    return noise, max(0.0, bias - noise / len(found))


def train(x, y, method, optimizer: str, steps: int | None, seed: int, optimum: float):
    result, course, final = whole.train(x, y, method, optimizer, steps, seed)
    exact = [(seconds, exact_objective(x, y, state)) for seconds, state in course]
    return result, exact_objective(x, y, final), seconds_to(optimum, exact)


def optimum_of(x, y):
    """Parameters and exact objective of Cholesky with L-BFGS, from the same start."""
    result, _, state = whole.train(x, y, "cholesky", "lbfgs", None, 0)
    return {key: value.clone() for key, value in state.items()}, result.loss


def at(x, y, state, dtype: torch.dtype):
    """GPyTorch's model in training mode, with these hyperparameters."""
    model = new_model(x, y, dtype).train()
    model.load_state_dict(state)
    return model


def parts(arguments: argparse.Namespace) -> None:
    for name in arguments.sets.split(","):
        x, y = load(name, arguments.split, arguments.limit, arguments.device)
        state, optimum = optimum_of(x, y)
        exact, metric = exact_gradient(at(x, y, state, torch.float64))
        runs, iterations = {**OFF, **ALONE}, 0.0
        for label in [*runs, "without the roulette (CG of the same length)"]:
            method, optimizer = runs.get(label, (without_roulette(max(1, round(iterations))), "auto"))
            row = {"set": name, "n": len(y), "d": x.shape[1], "split": arguments.split, "seed": arguments.seed}
            try:
                found = drawn(
                    at(x, y, state, torch.float32), method, arguments.gradients, arguments.before, arguments.seed
                )
                noise, bias = costs(found.gradients, exact, metric)
                steps = arguments.adam_steps if optimizer == "adam" else None
                result, objective, reached = train(x, y, method, optimizer, steps, arguments.seed, optimum)
            except rtgp.errors.RTGPError as error:
                print(row, label, "FAILED", error, flush=True)
                continue
            if label == "everything":
                iterations = found.iterations
            row |= {
                "setting": label,
                "optimizer": result.optimizer,
                "iterations": round(found.iterations, 1),
                "seconds_per_gradient": round(found.seconds, 4),
                "noise": f"{noise:.3g}",
                "bias": f"{bias:.3g}",
                "noise_x_seconds": f"{noise * found.seconds:.3g}",
                "steps": result.steps,
                "seconds": round(result.seconds, 2),
                "gap": round(objective - optimum, 5),
                "seconds_to_optimum": round(reached, 2),
            }
            keep(PARTS, row, arguments)


def preconditioners(arguments: argparse.Namespace) -> None:
    for name, kernel in (pair.split(":") for pair in arguments.only.split(",")):
        x, y = load(name, arguments.split, arguments.limit, arguments.device)
        best = regression_model(x, y, kernel, None)
        rtgp.fit(best, best.likelihood, x, y, rtgp.Cholesky(), "lbfgs", subset_start=min(1000, len(y)))
        exact, metric = exact_gradient(best.train())
        for label, kind in KINDS.items():
            row = {"set": name, "kernel": kernel, "n": len(y), "d": x.shape[1], "split": arguments.split}
            row |= {"seed": arguments.seed, "preconditioner": label}
            model = regression_model(x.float(), y.float(), kernel, None).train()
            model.load_state_dict(best.state_dict())
            method = rtgp.RRCG(preconditioner=kind)
            try:
                found = drawn(model, method, arguments.gradients, arguments.before, arguments.seed, learning=True)
            except rtgp.errors.RTGPError as error:
                print(row, "FAILED", error, flush=True)
                continue
            noise, bias = costs(found.gradients, exact, metric)
            row |= {
                "rank": found.last.rank,
                "neighbours": found.last.neighbours,
                "dtype": str(found.last.dtype).removeprefix("torch."),
                "iterations_per_step": round(found.iterations, 1),
                "seconds_per_step": round(found.seconds, 4),
                "seconds_to_begin": round(found.seconds_to_begin, 3),
                "noise": f"{noise:.3g}",
                "bias": f"{bias:.3g}",
                "noise_x_seconds": f"{noise * found.seconds:.3g}",
                "gradients": arguments.gradients,
            }
            keep(PRECONDITIONERS, row, arguments)


def keep(name: str, row: dict[str, object], arguments: argparse.Namespace) -> None:
    print(row, flush=True)
    if not arguments.dry:
        record.append(name, [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="parts", choices=("parts", "preconditioners"))
    parser.add_argument("--limit", type=int, default=2500, help="at most this many training points")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gradients", type=int, default=30, help="that count")
    parser.add_argument("--before", type=int, default=3, help="gradients before, which do not count")
    parser.add_argument("--sets", default="pol,kin40k,elevators", help="of parts")
    parser.add_argument("--adam-steps", type=int, default=150, help="of parts")
    every = ",".join(":".join(pair) for pair in PAIRS)
    parser.add_argument("--only", default=every, help="of preconditioners; set:kernel,...")
    parser.add_argument("--dry", action="store_true", help="print rows, and keep none")
    arguments = parser.parse_args()
    {"parts": parts, "preconditioners": preconditioners}[arguments.part](arguments)


if __name__ == "__main__":
    main()
