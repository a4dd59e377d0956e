"""Three ways to make a gradient cheaper, measured beside what the library does: are they worth building?

Real data, hyperparameters fitted by Cholesky, the whitened system A = S K S + I with the library's own preconditioner
P, right-hand sides y and 10 probes of covariance P, float64 unless the row says otherwise.

block      O'Leary's block CG (one Krylov space for all columns; the block residual is made orthonormal by QR in every
           iteration, after Dubrulle, so that it cannot break down) against the library's batched CG, with the rank the
           library begins with and with twice that. `move` 0: y from nothing; 0.1: after a step, as below.
recycling  Every log hyperparameter moves by +-`move`, one step of Adam; the preconditioner stays, and y begins at its
           solution before the step, as in training. k Ritz vectors of the run before the step (of P^-1 A on the Krylov
           spaces of all columns, those whose Ritz values are the farthest from one) are either projected out of the run
           after it (k more products with K) or added to P with their Ritz values (none). Against k more columns in the
           pivoted Cholesky factor, as old as P.
pathwise   Probes z = Phi w + sqrt(noise) e of covariance K + noise, Phi Fourier features redrawn for each of them, so
           that 1/2 alpha^T dK alpha, alpha = (K + noise)^-1 z, has the trace term of the gradient as its mean. Against
           probes of covariance P with and without the control variate. Exact solves: 200 draws of one probe each; the
           standard deviations in the rows are those of a mean of 10, for logarithms of hyperparameters.

`iterations_e`: until sqrt(r^T P^-1 r / reference) of every column is below e (reference: n for y, the start for a
probe). `roulette`: the mean length of a run under the rule of `RRCG()`. `cost_n`: operations of such a run, and of what
it takes besides, over those of the row with nothing changed, if the iterations were the same at n points:

    batched CG   2 n r (n + 6 rank) + 10 n r an iteration: the product with K, six with the factor, vectors
    block CG     2 n r (n + 6 rank) + 12 n r^2: D^T A D, X, R, Gram matrix, D (2 n r^2 each), two triangular solves
    recycling    4 n k r an iteration; Ritz vectors of m = J r Krylov vectors, 2 n m (m + k), a third of it: like a
                 preconditioner they may serve three steps; if projected, the products 2 n k (n + 6 rank) in every step
    more rank    14 n ((rank + k)^2 - rank^2), a third of it; made anew: 14 n rank^2, all of it

`noise_cost`: half the square of the noise of the trace term in the metric of the average information, per point.

    RTGP_DATA=folder python benchmarks/bench_options.py --sets pol,kin40k,elevators,protein,keggdirected --limit 2000
    RTGP_DATA=folder python benchmarks/bench_options.py --sets kin40k --limit 6000 --short --options block,recycling
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import record
import torch
from bench_ablation import costs
from bench_time_to_optimum import load, new_model

import rtgp
from rtgp.estimators import draw_probes
from rtgp.estimators.probes import random_signs
from rtgp.kernels import read_covariance
from rtgp.objectives.control_variate import COEFFICIENT, NystroemControl
from rtgp.objectives.upkeep import build_cost, iteration_cost
from rtgp.operators import make_from_form
from rtgp.solvers import LowRankPlusIdentity, Output, WhitenedSystem, conjugate_gradients
from rtgp.truncation import fixed, survival_path

PROBES = 10
COLUMNS = 1 + PROBES
LEVELS = (1e-1, 1e-2, 1e-4)
SIZES = (2000, 25600)
RECYCLED = (10, 30, 60)
MOVES = (0.01, 0.1)
FEATURES = (256, 1024, 4096)
DRAWS = 200
SETTINGS = rtgp.PivotedCholesky()
RULE = rtgp.RRCG().truncation
FIT_POINTS = 2000
STEPS_SERVED = 3.0  # by a preconditioner, and by Ritz vectors
ITERATIONS = [f"iterations_{e:g}" for e in LEVELS]
COSTS = [f"cost_{n}" for n in SIZES]
SCATTER = ["noise_cost", "sd_lengthscales", "sd_outputscale", "sd_noise"]
BLANK = dict.fromkeys(
    ["option", "setting", "k", "move", "dtype", "rank", *ITERATIONS, "roulette", *COSTS, *SCATTER, "check"], ""
)


@dataclass
class Problem:
    """The whitened system of a model, as a matrix; the target y in it."""

    system: WhitenedSystem
    a: torch.Tensor  # (n, n)
    target: torch.Tensor  # (n, 1)

    @staticmethod
    def of(model, x, y) -> Problem:
        with torch.no_grad():
            prior = model.forward(x)
            system = WhitenedSystem(
                make_from_form(read_covariance(prior.lazy_covariance_matrix)), model.likelihood.noise.reshape(())
            )
            return Problem(
                system, system.matmul(torch.eye(len(y), dtype=x.dtype)), system.whiten((y - prior.mean)[:, None])
            )

    def warm_start(self, before: Problem) -> None:
        """Leave of y what its solution of the step before does not explain."""
        solution = before.system.whiten(torch.linalg.solve(before.a, before.target))
        self.target = self.target - self.a @ self.system.unwhiten(solution)

    def factor(self, seed: int, rank: int | None = None, pivots: list | None = None) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return self.system.factor(SETTINGS, COLUMNS + 1, generator, rank, None, pivots)

    def sides(self, preconditioner, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Right-hand sides (n, r), and what r^T P^-1 r of each is measured against."""
        n, generator = len(self.a), torch.Generator().manual_seed(100 + seed)
        z = draw_probes("preconditioner", n, PROBES, preconditioner, generator, self.a.dtype, self.a.device).z
        rhs = torch.cat([self.target, z], dim=1)
        reference = preconditioner.solve(rhs)[1]
        reference[0] = float(n)
        return rhs, reference


def batched(matmul, rhs, preconditioner, reference, tolerance: float = LEVELS[-1], keep: bool = False):
    """The library's: solutions, squares (J + 1, r) and, where kept, the Lanczos vectors."""
    outputs = [Output(k, None) for k in range(rhs.shape[1])]
    found = conjugate_gradients(
        matmul, rhs, fixed(None), outputs, preconditioner, reference=dict(enumerate(reference.tolist())),
        tolerance=tolerance, keep_basis=slice(0, rhs.shape[1]) if keep else None,
    )  # fmt: skip
    return found.solutions, found.squares, found.basis


def block_cg(matmul, rhs, preconditioner, reference, tolerance: float = LEVELS[-1], limit: int = 2000):
    """Block CG on G^-1 A G^-T, G G^T = P: solutions (n, r), squares (J + 1, r), and the increments of the y-column."""
    basis, inverse = preconditioner.basis.to(rhs.dtype), preconditioner.core_inverse

    def half(v, core):  # G^-1 v, or G^-T v with the core transposed; projected twice, as the library does
        inside = basis.T @ v
        outside = v - basis @ inside
        outside -= basis @ (basis.T @ outside)
        return outside + basis @ (core @ inside.double()).to(v.dtype)

    residual, c = torch.linalg.qr(half(rhs, inverse))  # R = residual c
    direction, x = residual.clone(), torch.zeros_like(rhs)
    squares, increments = [c.square().sum(0).double()], []
    while bool((squares[-1] > tolerance**2 * reference).any()) and len(squares) <= limit:
        product = half(matmul(half(direction, inverse.T)), inverse)
        curvature = torch.linalg.inv(direction.T @ product)
        step = direction @ (curvature @ c)
        x += step
        increments.append(step[:, 0])
        residual, s = torch.linalg.qr(residual - product @ curvature)
        direction = residual + direction @ s.T
        c = s @ c
        squares.append(c.square().sum(0).double())
    return half(x, inverse.T), torch.stack(squares), half(torch.stack(increments, dim=1), inverse.T)


def lengths(squares, reference, y_first: bool = True) -> dict[str, float]:
    """Iterations to each level, and the mean length under the roulette, whose proxy is the library's."""
    ratios = squares / reference
    worst = ratios.max(1).values.sqrt()
    found = {f"iterations_{e:g}": int((worst > e).sum()) for e in LEVELS}
    proxies = torch.maximum(ratios[:, 0], ratios[:, 1:].mean(1)).sqrt() if y_first else ratios.mean(1).sqrt()
    return found | {"roulette": sum(survival_path(RULE, proxies.tolist()))}


def averaged(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(sum(row[key] for row in rows) / len(rows), 1) for key in rows[0]}


def rank_at(n: int) -> int:
    return SETTINGS.rank_for(n, COLUMNS + 1)


def run_cost(n: int, length: float, rank: int, extra: float = 10.0 * COLUMNS) -> float:
    """extra: operations for each point and iteration, beside the products."""
    return length * (iteration_cost(n, rank, COLUMNS) + n * extra)


def measure_block(model, x, y, before: Problem, seeds: range, short: bool) -> list[dict[str, object]]:
    return [
        row
        for move in ((0.1,) if short else (0.0, 0.1))
        for rank in ((rank_at(len(y)),) if short else (rank_at(len(y)), 2 * rank_at(len(y))))
        for dtype in ((torch.float32,) if short else (torch.float64, torch.float32))
        for row in block_rows(model, x, y, before, seeds, move, rank, dtype)
    ]


def block_rows(model, x, y, before: Problem, seeds: range, move: float, rank: int, dtype) -> list[dict[str, object]]:
    """move = 0: y from nothing; else a step away from where P was made, y from its solution there."""
    check = 0.0
    found: dict[str, list] = {"batched CG": [], "block CG": []}
    for seed in seeds:
        after = Problem.of(moved(model, x, y, move, seed), x, y) if move else before
        if move:
            after.warm_start(before)
        preconditioner = LowRankPlusIdentity(before.factor(seed, rank), dtype)
        rhs, reference = after.sides(preconditioner, seed)
        a, rhs = after.a.to(dtype), rhs.to(dtype)
        for name, method in (("batched CG", batched), ("block CG", block_cg)):
            found[name].append(lengths(method(a.__matmul__, rhs, preconditioner, reference)[1], reference))
        if seed == 0 and dtype == torch.float64:
            check = check_block(a, rhs, preconditioner, reference)
    means = {name: averaged(one) for name, one in found.items()}
    plain, rows = means["batched CG"]["roulette"], []
    for name, mean in means.items():
        extra = 12.0 * COLUMNS**2 if name == "block CG" else 10.0 * COLUMNS
        ratio = {}
        for m in SIZES:
            there = rank_at(m) * rank // rank_at(len(y))
            ratio[f"cost_{m}"] = round(run_cost(m, mean["roulette"], there, extra) / run_cost(m, plain, there), 3)
        row = {"option": "block", "setting": name, "move": move, "dtype": str(dtype).removeprefix("torch.")}
        row |= {"rank": rank} | mean | ratio
        rows.append(row | {"check": f"{check:.1e}" if check and name == "block CG" else ""})
    return rows


def check_block(a, rhs, preconditioner, reference) -> float:
    """Relative error of block CG run to the end; its increments, too, must be A-orthogonal in every column."""
    x, _, increments = block_cg(a.__matmul__, rhs, preconditioner, reference, 1e-9)
    exact = torch.linalg.solve(a, rhs)
    error = float((torch.linalg.vector_norm(x - exact, dim=0) / torch.linalg.vector_norm(exact, dim=0)).max())
    assert error < 1e-6, error
    gram = increments.T @ a @ increments
    scale = gram.diagonal().rsqrt()
    off = float((gram * scale * scale[:, None] - torch.eye(len(gram), dtype=a.dtype))[:8, :8].abs().max())
    assert off < 1e-6, off
    return error


class Updated:
    """P + P U (Theta - I) U^T P for U (n, k) with U^T P U = I: P that has the values Theta on P^-1/2 A P^-1/2 there."""

    def __init__(self, inner: LowRankPlusIdentity, u: torch.Tensor, values: torch.Tensor) -> None:
        self._inner, self._u, self._values = inner, u, values

    def solve(self, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        solved, squares = self._inner.solve(r)
        inside, less = self._u.T @ r, (1.0 / self._values - 1.0)[:, None]
        return solved + self._u @ (less * inside), squares + (less * inside.square()).sum(0)

    def sqrt_matmul(self, v: torch.Tensor) -> torch.Tensor:
        w = transposed_root(self._inner, self._u)  # orthonormal
        return self._inner.sqrt_matmul(v + w @ ((self._values.sqrt() - 1.0)[:, None] * (w.T @ v)))


def transposed_root(preconditioner: LowRankPlusIdentity, v: torch.Tensor) -> torch.Tensor:
    """G^T v with G = I + Q (C - I) Q^T."""
    core = torch.linalg.inv(preconditioner.core_inverse)
    inside = preconditioner.basis.T @ v
    return v + preconditioner.basis @ (core.T @ inside - inside)


def ritz(problem: Problem, preconditioner, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ritz vectors U (n, m), U^T P U = I, and values of P^-1 A on the span of vectors, the farthest from one first."""
    q, _ = torch.linalg.qr(transposed_root(preconditioner, vectors))
    inverse = preconditioner.core_inverse
    inside = preconditioner.basis.T @ q
    u = q + preconditioner.basis @ (inverse.T @ inside - inside)  # G^-T q
    values, turn = torch.linalg.eigh(u.T @ (problem.a @ u))
    order = values.log().abs().argsort(descending=True)[: max(RECYCLED)]
    return u @ turn[:, order], values[order]


def projected(a: torch.Tensor, u: torch.Tensor, rhs, preconditioner, reference, tolerance: float = LEVELS[-1]):
    """Deflated CG: U (U^T A U)^-1 U^T b, and the rest from a run on A - A U (U^T A U)^-1 U^T A."""
    au = a @ u
    core = torch.linalg.cholesky(u.T @ au)
    rest = rhs - au @ torch.cholesky_solve(u.T @ rhs, core)

    def matmul(v):
        return a @ v - au @ torch.cholesky_solve(au.T @ v, core)

    y, squares, _ = batched(matmul, rest, preconditioner, reference, tolerance)
    x = u @ torch.cholesky_solve(u.T @ rhs, core) + y - u @ torch.cholesky_solve(au.T @ y, core)
    return x, torch.cat([preconditioner.solve(rhs)[1][None], squares[1:]])


def measure_recycling(model, x, y, before: Problem, seeds: range, short: bool) -> list[dict[str, object]]:
    rows = []
    n, rank = len(y), rank_at(len(y))
    recycled = RECYCLED[-1:] if short else RECYCLED
    for move in MOVES[-1:] if short else MOVES:
        found: dict[tuple[str, int], list] = {}
        kept, check = [], 0.0
        for seed in seeds:
            after = Problem.of(moved(model, x, y, move, seed), x, y)
            after.warm_start(before)
            old = LowRankPlusIdentity(before.factor(seed), x.dtype)
            rhs, reference = before.sides(old, 50 + seed)
            _, squares, basis = batched(before.a.__matmul__, rhs, old, reference, 1e-2, keep=True)
            kept.append(len(squares) - 1)
            vectors, values = ritz(before, old, basis.permute(1, 0, 2).reshape(n, -1))
            variants = {("as it was", 0): old, ("made anew", 0): LowRankPlusIdentity(after.factor(seed), x.dtype)}
            for k in recycled:
                variants["more rank", k] = LowRankPlusIdentity(before.factor(seed, rank + k), x.dtype)
                variants["added to P", k] = Updated(old, vectors[:, :k].contiguous(), values[:k])
            for key, preconditioner in variants.items():
                rhs, reference = after.sides(preconditioner, seed)
                squares = batched(after.a.__matmul__, rhs, preconditioner, reference)[1]
                found.setdefault(key, []).append(lengths(squares, reference))
            rhs, reference = after.sides(old, seed)
            for k in recycled:
                squares = projected(after.a, vectors[:, :k], rhs, old, reference)[1]
                found.setdefault(("projected", k), []).append(lengths(squares, reference))
            if seed == 0:
                exact = torch.linalg.solve(after.a, rhs)
                solved = projected(after.a, vectors, rhs, old, reference, 1e-9)[0]
                check = float(torch.linalg.vector_norm(solved - exact) / torch.linalg.vector_norm(exact))
                assert check < 1e-6, check
        plain = averaged(found["as it was", 0])["roulette"]
        for (name, k), runs in found.items():
            mean = averaged(runs)
            ratio = {}
            for m in SIZES:
                cost = recycling_cost(name, k, m, mean["roulette"], sum(kept) / len(kept))
                ratio[f"cost_{m}"] = round(cost / recycling_cost("as it was", 0, m, plain, 0.0), 3)
            row = {"option": "recycling", "setting": name, "k": k, "move": move, "dtype": "float64", "rank": rank}
            row |= mean | ratio
            rows.append(row | {"check": f"{check:.1e}" if name == "projected" else ""})
    return rows


def recycling_cost(name: str, k: int, n: int, length: float, earlier: float) -> float:
    """earlier: iterations of the run that the Ritz vectors come from."""
    rank, vectors = rank_at(n), earlier * COLUMNS
    if name == "made anew":
        return run_cost(n, length, rank) + build_cost(n, rank)
    if name == "more rank":
        return run_cost(n, length, rank + k) + (build_cost(n, rank + k) - build_cost(n, rank)) / STEPS_SERVED
    cost = run_cost(n, length, rank, 10.0 * COLUMNS + 4.0 * k * COLUMNS)
    if k:
        cost += 2.0 * n * vectors * (vectors + k) / STEPS_SERVED
    if name == "projected":
        cost += iteration_cost(n, rank, k)
    return cost


def moved(model, x, y, move: float, seed: int):
    """The model after one step of Adam: every log hyperparameter up or down by `move`."""
    other = new_model(x, y, x.dtype).train()
    other.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(1000 + seed)
    kernel = other.covar_module
    with torch.no_grad():
        for owner, name in ((kernel.base_kernel, "lengthscale"), (kernel, "outputscale"), (other.likelihood, "noise")):
            value = getattr(owner, name).detach()
            signs = random_signs(value.numel(), 1, generator).reshape(value.shape)
            setattr(owner, name, value * (move * signs).exp())
    return other


def derivatives(model, x, kernel):
    """The matrices d (K + noise) / d log hyperparameter in turn: lengthscales, outputscale, noise."""
    scaled = x / model.covar_module.base_kernel.lengthscale.detach()
    for a in range(x.shape[1]):
        yield kernel * (scaled[:, None, a] - scaled[None, :, a]).square()
    yield kernel
    yield float(model.likelihood.noise) * torch.eye(len(x), dtype=x.dtype)


def fourier_probe(model, x, features: int, generator: torch.Generator) -> torch.Tensor:
    """z (n,) of covariance K + noise; features: columns of Phi, a cosine and a sine for each frequency."""
    lengthscale, outputscale = model.covar_module.base_kernel.lengthscale.detach(), model.covar_module.outputscale
    count = features // 2
    frequencies = torch.randn(x.shape[1], count, dtype=x.dtype, generator=generator)
    phase = (x / lengthscale) @ frequencies
    w = random_signs(count, 2, generator)
    smooth = (phase.cos() @ w[:, 0] + phase.sin() @ w[:, 1]) * math.sqrt(float(outputscale) / count)
    return smooth + math.sqrt(float(model.likelihood.noise)) * random_signs(len(x), 1, generator)[:, 0]


def measure_pathwise(model, x, problem: Problem) -> list[dict[str, object]]:
    n, d, noise = len(x), x.shape[1], float(model.likelihood.noise)
    system, generator = problem.system, torch.Generator().manual_seed(7)
    pivots: list[torch.Tensor] = []
    factor = problem.factor(0, None, pivots)
    preconditioner = LowRankPlusIdentity(factor, x.dtype)
    index = torch.cat(pivots)
    control = NystroemControl.of(preconditioner, factor, index, x.dtype)
    lower = torch.linalg.cholesky(problem.a)
    # u, v (n, DRAWS) for each kind, whitened: the trace term is 1/2 u^T dA v.
    pairs, sides = {}, {}
    probes = draw_probes("preconditioner", n, DRAWS, preconditioner, generator, x.dtype, x.device)
    sides["covariance P", 0] = probes.z
    pairs["covariance P", 0] = probes.dual, torch.cholesky_solve(probes.z, lower)
    for features in FEATURES:
        z = torch.stack([fourier_probe(model, x, features, generator) for _ in range(DRAWS)], dim=1)
        sides["pathwise", features] = system.whiten(z)
    sides["pathwise, no features: exact draws of the prior", 0] = lower @ random_signs(n, DRAWS, generator)
    for key, z in sides.items():
        if key not in pairs:
            alpha = torch.cholesky_solve(z, lower)
            pairs[key] = alpha, alpha

    inverse, alpha = torch.cholesky_inverse(lower), torch.cholesky_solve(problem.target, lower)
    at_pivots = control.b @ (preconditioner.basis.T @ probes.dual)  # B P^-1 z, (m, DRAWS)
    solved = preconditioner.solve(preconditioner.basis)[0]  # P^-1 Q
    cross = solved @ control.b.T  # P^-1 B^T
    core = control.b @ (preconditioner.basis.T @ cross)  # B P^-1 B^T
    exact, tangents = [], []
    found: dict[tuple[str, int], list[torch.Tensor]] = {key: [] for key in pairs}
    corrected = []
    kernel = (problem.a - torch.eye(n, dtype=x.dtype)) * noise
    for a, derivative in enumerate(derivatives(model, x, kernel)):
        derivative = derivative / noise  # S dK S
        exact.append(0.5 * (inverse * derivative).sum())
        tangents.append(derivative @ alpha)
        for key, (u, v) in pairs.items():
            found[key].append(0.5 * (u * (derivative @ v)).sum(0))
        if a == d + 1:  # the noise: M = I
            error = probes.dual.square().sum(0) - preconditioner.inverse_diagonal().sum()
        else:
            tall, small = derivative[:, index], derivative[index][:, index]
            error = 2.0 * (at_pivots * (tall.T @ probes.dual)).sum(0) - (at_pivots * (small @ at_pivots)).sum(0)
            error = error - (2.0 * (tall * cross).sum() - (small * core).sum())
        corrected.append(found["covariance P", 0][-1] - 0.5 * COEFFICIENT * error)
    found["covariance P, control variate", 0] = corrected
    sides["covariance P, control variate", 0] = probes.z
    truth, g = torch.stack(exact), torch.cat(tangents, dim=1)
    metric = 0.5 * g.T @ torch.cholesky_solve(g, lower) / n

    rows = []
    for key, parts in found.items():
        values = torch.stack(parts, dim=1)  # (DRAWS, d + 2)
        sd = values.std(0)
        off = float(((values.mean(0) - truth).abs() / (sd / math.sqrt(DRAWS))).max())
        assert off < 4.0, (key, off)
        z = sides[key][:, :PROBES].contiguous()
        reference = preconditioner.solve(z)[1]
        row: dict[str, object] = {"option": "pathwise", "setting": key[0], "k": key[1] or "", "dtype": "float64"}
        row |= {"rank": preconditioner.rank}
        row |= averaged([lengths(batched(problem.a.__matmul__, z, preconditioner, reference)[1], reference, False)])
        sd = sd / math.sqrt(PROBES)
        row["noise_cost"] = f"{costs(values / n, truth / n, metric)[0] / PROBES:.3g}"
        row["sd_lengthscales"] = f"{float(sd[:d].square().mean().sqrt()):.3g}"
        row["sd_outputscale"], row["sd_noise"] = f"{float(sd[d]):.3g}", f"{float(sd[d + 1]):.3g}"
        rows.append(row | {"check": f"{off:.1f}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="pol,kin40k,elevators,protein,keggdirected")
    parser.add_argument("--options", default="block,recycling,pathwise")
    parser.add_argument("--limit", type=int, default=2000, help="at most this many training points")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=2, help="preconditioners and sets of probes to average over")
    parser.add_argument(
        "--short", action="store_true", help="for more points: after a step of 0.1 only, one rank and k"
    )
    parser.add_argument("--dry", action="store_true", help="print the rows only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    short = arguments.short
    for name in arguments.sets.split(","):
        begin = time.perf_counter()
        x, y = load(name, arguments.split, arguments.limit, "cpu")
        start = new_model(x[:FIT_POINTS], y[:FIT_POINTS], torch.float64)
        rtgp.fit(start, start.likelihood, x[:FIT_POINTS], y[:FIT_POINTS], rtgp.Cholesky(), "lbfgs")
        model = new_model(x, y, torch.float64).train()
        model.load_state_dict(start.state_dict())
        print(name, f"fitted after {time.perf_counter() - begin:.0f} s", flush=True)
        problem, seeds = Problem.of(model, x, y), range(arguments.seeds)
        measures = {
            "block": lambda m=model, x=x, y=y, p=problem, s=seeds: measure_block(m, x, y, p, s, short),
            "recycling": lambda m=model, x=x, y=y, p=problem, s=seeds: measure_recycling(m, x, y, p, s, short),
            "pathwise": lambda m=model, x=x, p=problem: measure_pathwise(m, x, p),
        }
        for option in arguments.options.split(","):
            begin = time.perf_counter()
            with torch.no_grad():
                rows = measures[option]()
            rows = [{"set": name, "n": len(y), "d": x.shape[1], "split": arguments.split} | BLANK | r for r in rows]
            for row in rows:
                print({key: value for key, value in row.items() if value != ""}, flush=True)
            print(option, f"{time.perf_counter() - begin:.0f} s", flush=True)
            if not arguments.dry:
                record.append("options", rows)


if __name__ == "__main__":
    main()
