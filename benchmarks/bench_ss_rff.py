"""Variance of the gradient times its cost: SS-RFF by four settings, and RR-CG.

n = 2000 training points of pol, kin40k and elevators, float64, one thread. Hyperparameters: after 15 exact Adam steps
of 0.1 from GPyTorch's initial values ("early"), and at the optimum of exact training ("optimum"). The gradient is that
of the negative log marginal likelihood with respect to the logarithms of all hyperparameters; its variance is summed
over them. For given frequencies every term of a ladder is computed, so that the variance over the drawn term is exact
and only the mean over frequencies is sampled; the default's variance is measured again through the public objective,
from independent draws. RR-CG's is that of independent draws, without a warm start.

Cost is counted in operations (an exact gradient is n^3) and in seconds. "gain" is variance times operations, relative
to the paper's setting of SS-RFF.

    RTGP_DATA=... python benchmarks/bench_ss_rff.py
"""

from __future__ import annotations

import statistics
import time
import warnings
from dataclasses import dataclass

import gpytorch
import record
import torch

import rtgp
from rtgp._kernels.spectral import components_of, draw_spectrum
from rtgp._objectives import CholeskyObjective
from rtgp._objectives.fourier_algebra import FourierSystem, exact_operations
from rtgp._objectives.fourier_ladder import Ladder
from rtgp._preconditioners.shape import Costs, Shape
from rtgp.training._problem import Problem

N, SETS = 2000, ("pol", "kin40k", "elevators")
FREQUENCY_DRAWS, MEASURED, DRAWS = 4, 12, 30
SETTINGS = {
    "SSRFF()": rtgp.SSRFF(),
    "SSRFF(scaled=False)": rtgp.SSRFF(scaled=False),
    "SSRFF.paper()": rtgp.SSRFF.paper(),
    "SSRFF.paper(step=10)": rtgp.SSRFF.paper(step=10),
}


class Model(gpytorch.models.ExactGP):
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        floor = gpytorch.constraints.GreaterThan(1e-6)
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood(noise_constraint=floor))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1]))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def trained(name: str, point: str) -> tuple[Model, torch.Tensor, torch.Tensor]:
    data = rtgp.datasets.load(name).split(0)[0]
    x, y = torch.tensor(data.X[:N], dtype=torch.float64), torch.tensor(data.y[:N], dtype=torch.float64)
    model = Model(x, y).double()
    if point == "optimum":
        rtgp.fit(model, model.likelihood, x, y, method="cholesky", steps=40, subset_start=500)
    else:
        begin = {"optimizer": "adam", "learning_rate": 0.1, "subset_start": False, "tolerance": 0.0}
        rtgp.fit(model, model.likelihood, x, y, method="cholesky", steps=15, **begin)
    return model, x, y


@dataclass
class Rungs:
    """For one set of frequencies: gradient (p,) and log-determinant at each number of columns; 0 columns: exact."""

    gradients: dict[int, torch.Tensor]
    log_dets: dict[int, float]
    effective: dict[int, float]


def all_rungs(problem: Problem, columns: list[int], generator: torch.Generator) -> Rungs:
    batch = problem.mll._read(problem.model(problem.X), problem.y)
    spectrum = draw_spectrum(components_of(batch.form), columns[-1] // 2, generator)
    system = FourierSystem(batch, spectrum, columns[-1])
    rungs = Rungs({}, {}, {})
    for count in columns:
        (loss,) = system.losses([count], gradients=True)
        rungs.gradients[count] = problem._gradient_of(loss.surrogate)
        rungs.log_dets[count], rungs.effective[count] = loss.log_det, loss.effective_dimension
    exact = CholeskyObjective()(batch)
    rungs.gradients[0], rungs.log_dets[0] = problem._gradient_of(exact.surrogate), exact.stats.log_det
    return rungs


def conditional_variance(ladder: Ladder, probabilities: list[float], scale: float, rungs: Rungs) -> float:
    """Over the drawn term, summed over hyperparameters: sum_k P_k |base + term_k / P_k - exact|^2."""
    at = [*(scale * rungs.gradients[columns] for columns in ladder.rungs), rungs.gradients[0]]
    total = 0.0
    for k, probability in enumerate(probabilities, start=1):
        estimate = at[0] + (at[k] - at[k - 1]) / probability
        total += probability * float((estimate - at[-1]).square().sum())
    return total


def drawn(problem: Problem, count: int) -> tuple[torch.Tensor, list[float], float]:
    """Independent gradients (count, p), the operations of each, and the seconds of one."""
    gradients, operations, began = [], [], time.perf_counter()
    for _ in range(count):
        found = problem.evaluate()
        stats = found.stats
        gradients.append(found.gradient * N)  # in nats
        costs, shape, cpu = Costs(), Shape(stats.rank), torch.device("cpu")
        per_run = stats.iterations * costs.iteration(N, shape, stats.columns, cpu) if stats.iterations else 0.0
        operations.append(stats.operations or per_run + (costs.build(N, shape, cpu) if stats.rebuilt else 0.0))
    return torch.stack(gradients), operations, (time.perf_counter() - began) / count


def measure(name: str, point: str) -> list[dict[str, object]]:
    model, x, y = trained(name, point)
    problems = {
        label: Problem(model.train(), model.likelihood.train(), x, y, settings, 0)
        for label, settings in SETTINGS.items()
    }
    # The default has learned its probabilities from calls before.
    seconds = {label: drawn(problems[label], MEASURED)[2] for label in ("SSRFF()", "SSRFF(scaled=False)")}
    ladders = {label: Ladder.build(N, s.minimum, s.step, 1) for label, s in SETTINGS.items()}
    laws = {label: problems[label].mll._objective.probabilities(ladders[label]) for label in SETTINGS}
    scales = {label: problems[label].mll._objective.scale(ladders[label]) for label in SETTINGS}
    columns = sorted({count for ladder in ladders.values() for count in ladder.rungs})
    generator = torch.Generator().manual_seed(1)
    rungs = [all_rungs(problems["SSRFF()"], columns, generator) for _ in range(FREQUENCY_DRAWS)]
    exact = rungs[0].gradients[0]
    rows: list[dict[str, object]] = []

    def add(label: str, variance: float, cost: float, seconds: float | str, note: str = "") -> None:
        rows.append(
            {
                "set": name,
                "point": point,
                "n": N,
                "d": x.shape[1],
                "method": label,
                "gradient_norm": round(float(exact.norm()), 3),
                "sd": f"{variance**0.5:.4g}",
                "operations_over_n3": f"{cost / N**3:.4g}",
                "variance_times_operations": f"{variance * cost / N**3:.4g}",
                "seconds": seconds if isinstance(seconds, str) else f"{seconds:.3g}",
                "note": note,
            }
        )
        print(rows[-1], flush=True)

    for label in SETTINGS:
        ladder, law = ladders[label], laws[label]
        variance = statistics.fmean(conditional_variance(ladder, law, scales[label], one) for one in rungs)
        cost = sum(p * ladder.operations(k) for k, p in enumerate(law, start=1))
        words = (
            f"P = {', '.join(f'{p:.2f}' for p in law)}"
            if len(law) < 8
            else f"{len(law)} rungs, P(exact) = {law[-1]:.3f}"
        )
        words += f", scale {scales[label]:.3g}" if scales[label] < 1.0 else ""
        add(label, variance, cost, seconds.get(label, ""), words)
    draws, spent, each = drawn(problems["SSRFF()"], DRAWS)
    add("SSRFF(), drawn", float(draws.var(0).sum()), statistics.fmean(spent), each)
    problem = Problem(model.train(), model.likelihood.train(), x, y, rtgp.RRCG(warm_start=False), 0)
    draws, spent, each = drawn(problem, DRAWS)
    add("RRCG()", float(draws.var(0).sum()), statistics.fmean(spent), each, f"rank {problem.mll.last.rank}")
    began = time.perf_counter()
    Problem(model.train(), model.likelihood.train(), x, y, rtgp.Cholesky(), 0).evaluate()
    add("Cholesky()", 0.0, exact_operations(N), time.perf_counter() - began)
    for count in (250, 500, 900):
        bias = statistics.fmean(one.log_dets[count] - one.log_dets[0] for one in rungs)
        effective = statistics.fmean(one.effective[count] for one in rungs)
        error = torch.stack([one.gradients[count] - exact for one in rungs]).mean(0)
        d_eff = effective_dimension(problem)
        words = f"log|K| {bias:.1f}; d_eff {d_eff:.0f}, of the features {effective:.0f}; "
        words += f"bias J / d_eff^2 {bias * count / d_eff**2:.2f}"
        add(f"RFF({count}), bias", float(error.square().sum()), 4.0 * N * count**2, "", words)
    return rows


def effective_dimension(problem: Problem) -> float:
    with torch.no_grad():
        form = problem.mll._read(problem.model(problem.X), problem.y).form
        noise = float(problem.likelihood.noise)
        eigenvalues = torch.linalg.eigvalsh(form.block(slice(0, N), slice(0, N))).clamp_min(0.0)
    return float((eigenvalues / (eigenvalues + noise)).sum())


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = [row for name in SETS for point in ("early", "optimum") for row in measure(name, point)]
    for row in rows:
        own = [one for one in rows if (one["set"], one["point"]) == (row["set"], row["point"])]
        paper = next(one for one in own if one["method"] == "SSRFF.paper()")
        price = float(str(row["variance_times_operations"]))
        comparable = price > 0.0 and "bias" not in str(row["method"])
        row["gain"] = f"{float(str(paper['variance_times_operations'])) / price:.4g}" if comparable else ""
        print(row["set"], row["point"], row["method"], "gain", row["gain"])
    print(f"rows appended to {record.append('ss_rff', rows).name}")


if __name__ == "__main__":
    main()
