"""Does the roulette matter? `RRCG()` against plain CG with the same preconditioner, warm start, optimiser and cost.

honest    RR-CG finds its number of iterations J; plain CG is then given that J, and 10, at every step. Rows of the
          final exact objective, for several seeds of the probes. The model is that of `rtgp.GPRegressor`, or with
          GPyTorch's defaults (--model gpytorch): lengthscales begin at ln 2, and the noise ends at 1e-4.
budget    the final error against the iterations per step: CG(5) to CG(100), and RR-CG with rules of rising length,
          all with the same preconditioner of a fixed rank; and the exact optimum. Adam with averaged iterates: noise
          averages out, bias does not.

ends      how far a run of RR-CG ends above the best of its last five steps, by Cholesky in float64 and in 80-bit
          numbers, for some thousand points.

RTGP_DATA=folder python benchmarks/bench_roulette.py honest --sets pol,kin40k --seeds 0,1,2
RTGP_DATA=folder python benchmarks/bench_roulette.py ends --sets bike --limit 2000 --seeds 0,1,2,3,4
RTGP_DATA=folder python benchmarks/bench_roulette.py budget --sets kin40k,pol --limit 2000
RTGP_DATA=folder python benchmarks/bench_roulette.py budget --sets kin40k,pol --limit 2000 --steps 1200 \
    --budgets 5,10,20 --taus 8,4,2 --seeds 0,1
"""

from __future__ import annotations

import argparse
import math
import statistics

import bench_time_to_optimum as whole
import checkout  # noqa: F401
import extended
import record
import torch
from bench_time_to_optimum import exact_objective, load

import rtgp
from reproduction import models
from rtgp._estimator.model import new_model
from rtgp.truncation import ResidualDriven

STRONG = rtgp.PivotedCholesky()
BUDGETS = (5, 10, 20, 40, 70, 100)
LOOK_BACK = 5  # steps; earlier ones are on their way down
TAUS = (8.0, 4.0, 2.0, 0.8, 0.4, 0.2, 0.1, 0.05)


def plain(iterations: int, preconditioner: rtgp.PivotedCholesky = STRONG, refresh: int | None = None) -> rtgp.CG:
    """CG with every part of `RRCG()` but the roulette."""
    return rtgp.CG(iterations, 10, preconditioner, "preconditioner", refresh=refresh, warm_start=True)


def run(
    x, y, label: str, method, optimizer: str, steps: int | None, seed: int, look_back: int = 0,
    model: str = "gpytorch",
) -> dict[str, object]:  # fmt: skip
    """Train and judge the end by its exact objective, beside the best of the last `look_back` steps (0: of all); nan if
    it ends where K is not positive definite in float64."""
    made = new_model(x.float(), y.float(), "rbf", None) if model == "rtgp" else None
    result, course, final = whole.train(x, y, method, optimizer, steps, seed, made)

    def judged(state) -> float:
        return exact_objective(x, y, state) if made is None else models.exact_objective(made, state)

    if x.is_cuda:  # the exact objective needs the memory
        torch.cuda.empty_cache()
    try:
        objective = judged(final)
    except rtgp.errors.NotPositiveDefiniteError as error:  # it went astray
        print(label, seed, "ends where", error, flush=True)
        objective, course = math.nan, []
    return {
        "method": label,
        "optimizer": result.optimizer,
        "run_seed": seed,
        "steps": result.steps,
        "seconds": round(result.seconds, 2),
        "iterations": round(statistics.fmean(result.history.column("iterations")), 1),
        "rank": result.history.column("rank")[-1],
        "objective": round(objective, 5),
        "best_on_the_way": round(min([objective, *(judged(state) for _, state in course[-look_back:])]), 5),
    }


def honest(x, y, seeds: list[int], compared: int, base: dict[str, object]) -> None:
    def one(label: str, method, seed: int, look_back: int) -> dict[str, object]:
        row = base | run(x, y, label, method, "auto", None, seed, look_back, str(base["model"]))
        print(row, flush=True)
        record.append("roulette_honest", [row])
        return row

    for number, seed in enumerate(seeds):
        length = max(1, round(float(str(one("rr-cg", rtgp.RRCG(), seed, LOOK_BACK)["iterations"]))))
        for iterations in dict.fromkeys((length, 10)) if number < compared else ():
            label = "cg-same-cost" if iterations == length else f"cg-{iterations}"
            try:
                one(label, plain(iterations), seed, 1)
            except rtgp.errors.RTGPError as error:
                print(base, label, seed, "FAILED", error, flush=True)


def ends(x, y, seeds: list[int], base: dict[str, object]) -> None:
    for seed in seeds:
        model = new_model(x.float(), y.float(), "rbf", None)
        result, course, final = whole.train(x, y, rtgp.RRCG(), "auto", None, seed, model)
        row = base | {"run_seed": seed, "steps": result.steps, "ended": result.status.value}
        row |= {"outputscale": f"{float(model.covar_module.outputscale.detach()):.3g}"}
        row |= {"noise": f"{float(model.likelihood.noise.detach()):.3g}"}
        for judge, judged in (("float64", models.exact_objective), ("80_bits", extended.exact_objective)):
            objective = judged(model, final)
            best = min([objective, *(judged(model, state) for _, state in course[-LOOK_BACK:])])
            row |= {f"objective_{judge}": round(objective, 5), f"above_best_{judge}": round(objective - best, 5)}
        print(row, flush=True)
        record.append("roulette_ends", [row])


def budget(
    x, y, seeds: list[int], base: dict[str, object], rank: int, steps: int, budgets: list[int], taus: list[float]
) -> None:
    fixed = rtgp.PivotedCholesky(rank)
    methods = {f"cg-{iterations}": plain(iterations, fixed, 10) for iterations in budgets}
    for tau in taus:
        rule = ResidualDriven(tau)
        methods[f"rr-cg tau={tau}"] = rtgp.RRCG(truncation=rule, preconditioner=fixed, refresh=10)
    result, _, _ = whole.train(x, y, "cholesky", "lbfgs", None, 0)
    exact = {"method": "exact", "optimizer": "lbfgs", "run_seed": 0, "steps": result.steps}
    exact |= {"seconds": round(result.seconds, 2), "iterations": 0.0, "rank": 0}
    exact |= {"objective": round(result.loss, 5), "best_on_the_way": round(result.loss, 5)}
    record.append("roulette_budget", [base | exact])
    for seed in seeds:
        for label, method in methods.items():
            try:
                row = base | run(x, y, label, method, "adam", steps, seed, 1)
            except rtgp.errors.RTGPError as error:
                print(base, label, "FAILED", error, flush=True)
                continue
            print(row, flush=True)
            record.append("roulette_budget", [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["honest", "ends", "budget"])
    parser.add_argument("--sets", default="pol,bike,elevators,kin40k,protein,keggdirected,keggundirected")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--model", choices=["rtgp", "gpytorch"], default="rtgp", help="honest: whose defaults it has")
    parser.add_argument("--compared", type=int, default=3, help="honest: seeds for which CG is run too")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rank", type=int, default=100, help="budget: of the preconditioner")
    parser.add_argument("--steps", type=int, default=150, help="budget: of Adam")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="budget: iterations of CG")
    parser.add_argument(
        "--taus", default=",".join(map(str, TAUS)), help="budget: of RR-CG's rule; larger, shorter runs"
    )
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for name in arguments.sets.split(","):
        x, y = load(name, arguments.split, arguments.limit, arguments.device)
        base: dict[str, object] = {"set": name, "n": len(y), "d": x.shape[1], "split": arguments.split}
        if arguments.part == "honest":
            honest(x, y, seeds, arguments.compared, base | {"model": arguments.model})
        elif arguments.part == "ends":
            ends(x, y, seeds, base)
        else:
            budgets = [int(value) for value in arguments.budgets.split(",")]
            taus = [float(value) for value in arguments.taus.split(",")]
            budget(x, y, seeds, base, arguments.rank, arguments.steps, budgets, taus)


if __name__ == "__main__":
    main()
