"""What each part of `RRCG()` gains: every part switched off by itself, and every part alone on top of the paper's.

`noise_x_seconds`: what the noise of one gradient costs, half its square in the metric of the average information, per
point, times the seconds of one evaluation, at the hyperparameters that Cholesky finds. `bias`: what the bias of the
gradient costs in the same metric, which no number of steps averages out. `seconds_to_optimum`: of a whole training run,
from the start that all runs share, until its exact objective is within 0.002 per point of the optimum for good; nan if
it never is.

    RTGP_DATA=folder python benchmarks/bench_ablation.py --sets pol,kin40k,elevators --limit 3000
"""

from __future__ import annotations

import argparse
import statistics
import time

import bench_time_to_optimum as whole
import record
import torch
from bench_time_to_optimum import exact_objective, load, new_model, seconds_to

import rtgp
from rtgp.training.problem import Problem
from rtgp.truncation import ExponentialDecay, ResidualDriven

NAME = "ablation"
EVALUATIONS = 30
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


def gradients(x, y, state, method, dtype, count: int, seed: int):
    """`count` gradient estimates (count, p) at `state`, the mean seconds of one, and the mean iterations.

    The first two evaluations are not counted: they make the preconditioner and the warm start.
    """
    model = new_model(x, y, dtype).train()
    model.load_state_dict(state)
    problem = Problem(model, model.likelihood, *model.train_inputs, model.train_targets, method, seed)
    found, seconds, iterations = [], [], []
    for _ in range(count + 2):
        begin = time.perf_counter()
        one = problem.evaluate()
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        found.append(one.gradient)
        iterations.append(one.stats.iterations)
    return torch.stack(found[2:]), statistics.fmean(seconds[2:]), statistics.fmean(iterations[2:])


def exact_gradient(x, y, state):
    """Gradient (p,) and average-information matrix (p, p), exact."""
    model = new_model(x, y, torch.float64).train()
    model.load_state_dict(state)
    problem = Problem(model, model.likelihood, *model.train_inputs, model.train_targets, rtgp.Cholesky(), 0)
    one = problem.evaluate(information=1e-3)
    return one.gradient, one.information


def costs(found, exact, metric) -> tuple[float, float]:
    """1/2 E|noise|^2 and 1/2 |bias|^2 in the inverse metric, per point; the bias less what noise alone would show.

    Without the hyperparameters on which nothing depends (lengthscales that have gone to infinity): their gradients are
    so small that float32 takes them for zero, and divided by as small a metric that would count as a bias.
    """
    felt = metric.diagonal() > 1e-8 * metric.diagonal().max()
    found, exact, metric = found[:, felt], exact[felt], metric[felt][:, felt]
    scale = metric.diagonal().rsqrt()
    values, vectors = torch.linalg.eigh(metric * scale * scale[:, None])
    root = (vectors / values.clamp_min(1e-4).sqrt()).T * scale  # root^T root = metric^-1, its weakest directions cut
    centred = (found - found.mean(0)) @ root.T
    noise = 0.5 * float(centred.square().sum() / (len(found) - 1))
    bias = 0.5 * float(((found.mean(0) - exact) @ root.T).square().sum())
    return noise, max(0.0, bias - noise / len(found))


def train(x, y, method, optimizer: str, steps: int | None, seed: int, optimum: float):
    whole.METHODS["this"] = (method, torch.float32)
    result, course, final = whole.train(x, y, "this", optimizer, steps, seed)
    exact = [(seconds, exact_objective(x, y, state)) for seconds, state in course]
    return result, exact_objective(x, y, final), seconds_to(optimum, exact)


def optimum_of(x, y):
    """Parameters and exact objective of Cholesky with L-BFGS, from the same start."""
    result, _, state = whole.train(x, y, "cholesky", "lbfgs", None, 0)
    return {key: value.clone() for key, value in state.items()}, result.loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="pol,kin40k,elevators")
    parser.add_argument("--limit", type=int, default=3000, help="at most this many training points")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--adam-steps", type=int, default=150)
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        x, y = load(name, arguments.split, arguments.limit, arguments.device)
        state, optimum = optimum_of(x, y)
        exact, metric = exact_gradient(x, y, state)
        runs, iterations = {**OFF, **ALONE}, 0.0
        for label in [*runs, "without the roulette (CG of the same length)"]:
            method, optimizer = runs.get(label, (without_roulette(max(1, round(iterations))), "auto"))
            row = {"set": name, "n": len(y), "d": x.shape[1], "split": arguments.split, "seed": arguments.seed}
            try:
                found, seconds, mean = gradients(x, y, state, method, torch.float32, EVALUATIONS, arguments.seed)
                noise, bias = costs(found, exact, metric)
                steps = arguments.adam_steps if optimizer == "adam" else None
                result, objective, reached = train(x, y, method, optimizer, steps, arguments.seed, optimum)
            except rtgp.errors.RTGPError as error:
                print(row, label, "FAILED", error, flush=True)
                continue
            if label == "everything":
                iterations = mean
            row |= {
                "setting": label,
                "optimizer": result.optimizer,
                "iterations": round(mean, 1),
                "seconds_per_gradient": round(seconds, 4),
                "noise": f"{noise:.3g}",
                "bias": f"{bias:.3g}",
                "noise_x_seconds": f"{noise * seconds:.3g}",
                "steps": result.steps,
                "seconds": round(result.seconds, 2),
                "gap": round(objective - optimum, 5),
                "seconds_to_optimum": round(reached, 2),
            }
            print(row, flush=True)
            record.append(NAME, [row])


if __name__ == "__main__":
    main()
