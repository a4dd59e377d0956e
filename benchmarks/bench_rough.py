"""A rough kernel on data with little noise, where a preconditioner leaves most of the matrix out: what the control
variate takes from the noise of the gradient, and what training makes of it.

gradient   At the optimum of Cholesky with the noise set to several levels: half the square of the gradient's noise in
           the metric of the average information, per point, over 20 gradients; without the control variate, with one
           half of it, and with the parts that are learnt. Also the standard deviations, in the same metric, of single
           coordinates.
training   Whole trainings by `RRCG()`, and without one of what it does about this: steps, how they ended, and the exact
           objective above that of Cholesky with L-BFGS.

    RTGP_DATA=folder python benchmarks/bench_rough.py gradient
    RTGP_DATA=folder python benchmarks/bench_rough.py training --seeds 10,11,12 --settings "RRCG(),no control variate"
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings

import checkout  # noqa: F401
import record
import torch
from bench_time_to_optimum import load

import rtgp
from reproduction.models import exact_objective
from rtgp._estimator.model import RegressionModel, new_model
from rtgp._objectives import EstimateSettings
from rtgp._objectives.control_coefficients import CoefficientSettings
from rtgp._preconditioners.nystroem_control import ControlSettings
from rtgp._preconditioners.policy_settings import PolicySettings
from rtgp.training._newton import NewtonSettings
from rtgp.training._problem import Problem
from rtgp.training._settings import TrainingSettings

SET, SPLIT, LIMIT, KERNEL = "kin40k", 10, 2500, "matern32"
LEVELS = (1e-3, 1e-4, 1e-5, 1.1e-6)
BEFORE, GRADIENTS = 3, 20  # calls that learn, and those that count
TOLERANCE = 2e-4  # of training, which it adds to the metric
SETTING_OF = {"none": "no control variate", "half": "half of it for all", "learnt": "RRCG()"}


def fitted(x: torch.Tensor, y: torch.Tensor) -> RegressionModel:
    """At the optimum of Cholesky."""
    model = new_model(x, y, KERNEL, None)
    rtgp.fit(model, model.likelihood, x, y, rtgp.Cholesky(), "lbfgs", subset_start=1000)
    return model.train()


def gradient_noise(best: RegressionModel) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    x, y = best.train_inputs[0], best.train_targets
    for level in LEVELS:
        for control in SETTING_OF:
            model = new_model(x, y, KERNEL, None)
            model.load_state_dict(best.state_dict())
            model.likelihood.noise = level
            model.train()
            exact = Problem(model, model.likelihood, x, y, rtgp.Cholesky(), 0).evaluate(information=1e-3)
            assert exact.information is not None
            metric = exact.information + TOLERANCE * torch.eye(len(exact.gradient), dtype=torch.float64)
            problem = Problem(model, model.likelihood, x, y, method_of(SETTING_OF[control]), 0)
            for _ in range(BEFORE):
                problem.evaluate(contrast=True, information=0.03)
            found = [problem.evaluate(contrast=True) for _ in range(GRADIENTS)]
            apart = torch.stack([one.gradient - exact.gradient for one in found])
            costs = 0.5 * (apart * torch.linalg.solve(metric, apart.T).T).sum(1)
            spread = apart.std(0) / metric.diagonal().sqrt()
            rows.append(
                {
                    "set": SET, "n": len(y), "kernel": KERNEL, "noise": level, "control": control,
                    "noise_cost": float(f"{costs.mean():.3g}"),
                    "sd_noise": float(f"{spread[0]:.2g}"),
                    "sd_outputscale": float(f"{spread[2]:.2g}"),
                    "sd_lengthscales": float(f"{spread[3:].square().mean().sqrt():.2g}"),
                    "rank": found[-1].stats.rank, "gradients": GRADIENTS,
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def method_of(setting: str) -> rtgp.RRCG:
    """With one part of it left out."""
    half = ControlSettings().low_rank
    parts = {
        "half of it for all": EstimateSettings(coefficients=CoefficientSettings(fixed=(half, half))),
        "noise of an old preconditioner not counted": EstimateSettings(PolicySettings(doubt=math.inf)),
    }
    settings = parts.get(setting, EstimateSettings())
    return rtgp.RRCG(control_variate=setting != "no control variate", _settings=settings)


def settings_of(setting: str) -> TrainingSettings:
    return TrainingSettings(NewtonSettings(stiffest=1.0)) if setting == "curvature not felt" else TrainingSettings()


def trainings(best: RegressionModel, seeds: list[int], settings: list[str]) -> list[dict[str, object]]:
    optimum = exact_objective(best)
    x, y = best.train_inputs[0].float(), best.train_targets.float()
    rows: list[dict[str, object]] = []
    for setting, seed in itertools.product(settings, seeds):
        model = new_model(x, y, KERNEL, None)
        own = settings_of(setting)
        result = rtgp.fit(model, model.likelihood, x, y, method_of(setting), seed=seed, _settings=own)
        rows.append(
            {
                "set": SET, "n": len(y), "kernel": KERNEL, "setting": setting, "run_seed": seed,
                "steps": result.steps, "ended": result.status.value,
                "iterations": sum(int(count) for count in result.history.column("iterations")),
                "gap": float(f"{exact_objective(model) - optimum:.2g}"),
                "noise": float(f"{float(model.likelihood.noise):.2g}"),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("gradient", "training"))
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--settings", default="RRCG()")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    x, y = load(SET, SPLIT, LIMIT, "cpu")
    best = fitted(x, y)
    if args.part == "gradient":
        print(record.append("rough_gradient", gradient_noise(best)))
    else:
        seeds = [int(seed) for seed in args.seeds.split(",")]
        print(record.append("rough_training", trainings(best, seeds, args.settings.split(","))))


if __name__ == "__main__":
    main()
