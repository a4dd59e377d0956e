"""BoTorch by our solver against plain BoTorch: Thompson sampling, the posterior, and a loop of optimisation.

Every arm of a part is a process of its own, so that its peak memory is its own; the arms take turns, `--repeats` times.
Rows: seconds, peak memory, and how good the choice was; of a loop each round as well, in results/botorch_rounds.csv. At
the end of a part the ratio ours / plain is printed. `--most 3` ends the loop of plain BoTorch after the round in which
it has taken three times what ours took in all: `rounds` says how many it had done by then.

    python benchmarks/bench_botorch.py thompson --n 20000 --paths 64
    python benchmarks/bench_botorch.py posterior --n 20000
    python benchmarks/bench_botorch.py posterior --n 5000 --calls 200
    python benchmarks/bench_botorch.py loop --rounds 30 --points 100 --seeds 0,1,2,3,4

`--n 2000 --candidates 500`, or `--rounds 3 --points 40 --seeds 0`, is a small run of each.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import botorch
import checkout  # noqa: F401
import record
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.generation import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.test_functions import Hartmann
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

import rtgp
import rtgp.botorch

ARMS = ("rtgp", "botorch")
FUNCTION = Hartmann(dim=6, negate=True).to(dtype=torch.float64)  # its maximum is 3.32237
NOISE = 0.05


def uniform(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, FUNCTION.dim, generator=generator, dtype=torch.float64)


def observed(X: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(len(X), 1, generator=generator, dtype=torch.float64)
    values: Tensor = FUNCTION(X)[:, None] + NOISE * noise
    return values


def new_model(X: Tensor, Y: Tensor) -> SingleTaskGP:
    return SingleTaskGP(X, Y, input_transform=Normalize(FUNCTION.dim), outcome_transform=Standardize(1))


def given_model(n: int, seed: int) -> SingleTaskGP:
    """With hyperparameters that a training finds, roughly: what is measured comes after it."""
    generator = torch.Generator().manual_seed(seed)
    X = uniform(n, generator)
    model = new_model(X, observed(X, generator))
    with torch.no_grad():
        model.covar_module.lengthscale = 0.4
        model.likelihood.noise = 0.02
    return model


def optimised(paths: Any, count: int, candidates: Tensor, steps: int) -> Tensor:
    """A maximum of each path, (count, d): the best candidate, and Adam from there."""
    with torch.no_grad():
        best = paths(candidates)[..., 0].argmax(-1)
    x = candidates[best][:, None].clone().requires_grad_(True)  # (count, 1, d)
    optimizer = torch.optim.Adam([x], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (-paths(x)).sum().backward()
        optimizer.step()
        x.data.clamp_(0.0, 1.0)
    return x.detach()[:, 0]


def chosen(model: SingleTaskGP, arm: str, count: int, a: argparse.Namespace, generator: torch.Generator) -> Tensor:
    """Points by Thompson sampling: optimised paths, or BoTorch's joint samples at candidates."""
    candidates = uniform(a.candidates, generator)
    if arm == "botorch":
        with torch.no_grad():
            picked: Tensor = MaxPosteriorSampling(model)(candidates, num_samples=count)
        return picked
    with torch.no_grad():  # or BoTorch's paths would keep a graph of the hyperparameters
        paths = get_matheron_path_model(model, sample_shape=torch.Size([count]))
    return optimised(paths, count, candidates, a.steps)


Figures = dict[str, Any]  # numbers by name


def thompson(arm: str, a: argparse.Namespace) -> Figures:
    model = given_model(a.n, a.seed)
    begin = time.perf_counter()
    if arm == "rtgp":
        model = rtgp.botorch.wrap(model, method=a.method)
    points = chosen(model, arm, a.paths, a, torch.Generator().manual_seed(1))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "mean_value": float(FUNCTION(points).mean())}


def posterior(arm: str, a: argparse.Namespace) -> Figures:
    """The first call, which makes what all need, and `--calls` with gradients at sets of points."""
    model = given_model(a.n, a.seed)
    generator = torch.Generator().manual_seed(1)
    begin = time.perf_counter()
    if arm == "rtgp":
        model = rtgp.botorch.wrap(model, method=a.method)
    total = 0.0
    for call in range(a.calls + 1):
        x = uniform(a.sets * a.q, generator).reshape(a.sets, a.q, FUNCTION.dim).requires_grad_(True)
        found = model.posterior(x)
        value = found.mean.sum() + found.variance.sum()
        value.backward()
        total += float(value)
        if call == 0:
            first = time.perf_counter() - begin
    return {"seconds": time.perf_counter() - begin, "first": first, "sum": total}


def loop(arm: str, a: argparse.Namespace) -> Figures:
    generator = torch.Generator().manual_seed(a.seed)
    torch.manual_seed(a.seed)  # BoTorch draws from torch's default generator
    X = uniform(a.points, generator)
    Y = observed(X, generator)
    begin, fitting, state = time.perf_counter(), 0.0, None
    for number in range(1, a.rounds + 1):
        model, start = new_model(X, Y), time.perf_counter()
        if arm == "rtgp":
            if state is not None and a.warm:
                for name, parameter in model.named_parameters():
                    parameter.data.copy_(state[name])
            fit_gpytorch_mll(rtgp.MarginalLogLikelihood(model.likelihood, model, a.training, generator))
            model = rtgp.botorch.wrap(model, method=a.method)
            state = dict(model.named_parameters())
        else:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        fitting += time.perf_counter() - start
        new = chosen(model, arm, a.points, a, generator)
        seconds = time.perf_counter() - start
        X, Y = torch.cat([X, new]), torch.cat([Y, observed(new, generator)])
        regret = FUNCTION.optimal_value - float(FUNCTION(X).max())
        print(json.dumps({"round": number, "n": len(X) - len(new), "seconds": seconds, "regret": regret}), flush=True)
        if time.perf_counter() - begin > a.seconds:
            break
    return {"seconds": time.perf_counter() - begin, "fitting": fitting, "regret": regret, "rounds": number}


PARTS: dict[str, Callable[[str, argparse.Namespace], Figures]] = {
    "thompson": thompson,
    "posterior": posterior,
    "loop": loop,
}


def child(a: argparse.Namespace) -> None:
    """One arm in this process; its figures as a line of JSON."""
    torch.set_num_threads(a.threads)
    found = PARTS[a.part](a.child, a)
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def measured(arm: str, seed: int, seconds: float, note: Callable[[Figures], None]) -> Figures:
    """What the process of an arm prints at its end; what it prints before, a line a round, is noted at once."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", arm, "--seed", str(seed), "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found: Figures = {}
        for line in process.stdout:
            if found:
                note(found)
            found = json.loads(line)
    if process.returncode:
        raise SystemExit(f"{arm} failed")
    return found


def noted(a: argparse.Namespace, what: dict[str, object], one: Figures) -> None:
    print({**what, **one}, flush=True)
    if not a.dry:
        record.append("botorch_rounds", [{**what, "threads": a.threads, **one}])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--paths", type=int, default=64)
    parser.add_argument("--candidates", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=50, help="of Adam, for the paths")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--sets", type=int, default=16)
    parser.add_argument("--q", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--method", default="auto", help="of wrap")
    parser.add_argument("--training", help="the method of the likelihood in the loop; the cheaper one if left out")
    parser.add_argument("--warm", action="store_true", help="the loop: begin at the last round's hyperparameters")
    parser.add_argument("--most", type=float, help="of ours, seconds after which plain BoTorch's loop ends")
    parser.add_argument("--seconds", type=float, default=math.inf, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help="print only, append no rows")
    a = parser.parse_args()
    if a.child:
        return child(a)
    found: dict[str, list[Figures]] = {arm: [] for arm in ARMS}
    for seed in map(int, a.seeds.split(",")):
        for repeat in range(a.repeats):
            for arm in ARMS if repeat % 2 == 0 else ARMS[::-1]:
                what = {"part": a.part, "arm": arm, "botorch": botorch.__version__, "run_seed": seed, "repeat": repeat}
                ours = found[ARMS[0]][-1]["seconds"] if a.most and arm != ARMS[0] else math.inf
                figures = measured(arm, seed, (a.most or 1.0) * ours, functools.partial(noted, a, what))
                found[arm].append(figures)
                size = {"n": a.rounds * a.points if a.part == "loop" else a.n, "threads": a.threads}
                print({**what, **size, **figures}, flush=True)
                if not a.dry:
                    record.append(f"botorch_{a.part}", [{**what, **size, "method": a.method, **figures}])
    for name in found[ARMS[0]][0]:
        ours, plain = (statistics.median(one[name] for one in found[arm]) for arm in ARMS)
        print(f"{name}: rtgp {ours:.4g}, botorch {plain:.4g}, ratio {ours / plain if plain else float('nan'):.3f}")


if __name__ == "__main__":
    main()
