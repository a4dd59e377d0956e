"""How CG's log-determinant and quadratic term approach their limits along one long run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._methods import CG, RRCG
from rtgp._objectives import EstimateSettings
from rtgp._preconditioners.policy import Policy
from rtgp._solvers import CGStatus, Output, conjugate_gradients
from rtgp._traces import draw_probes, log_det_series, quadratic_series
from rtgp.diagnostics._settings import MeasureSettings
from rtgp.diagnostics._subject import SubjectSystem
from rtgp.truncation import fixed


@dataclass(frozen=True)
class Course:
    """The terms of the value along one run.

    After the first, every increment of log|K| is negative and every one of the quadratic positive: what a truncation
    leaves out has one sign. This is Theorem 1, probe by probe.
    """

    log_det: Tensor  # (J, probes) float64: increments
    quadratic: Tensor  # (J,) float64: increments
    ended: bool  # whether every column reached its end; if not, what is missing after J is not known
    iterations_to_percent: int | None  # after which every column has an error ratio below 1%

    def log_det_bias(self, iterations: int) -> Tensor:
        """(probes,): of the estimate that ends after so many iterations."""
        return -self.log_det[iterations:].sum(0)

    def quadratic_bias(self, iterations: int) -> float:
        return -float(self.quadratic[iterations:].sum())


def course_of(of: SubjectSystem, method: CG | RRCG, cap: int, seed: int, settings: MeasureSettings) -> Course:
    """One run with the method's preconditioner: y and as many probes as the method has."""
    system, n = of.system, of.system.size
    generator = torch.Generator().manual_seed(seed)
    settings_of_policy = (method._settings or EstimateSettings()).policy
    policy = Policy(method.preconditioner, 1, 2 + method.probes, settings=settings_of_policy)
    preconditioner, _ = policy.preconditioner(system, generator, False)
    probes = draw_probes("preconditioner", n, method.probes, preconditioner, generator, system.dtype, system.device)
    run = conjugate_gradients(
        system.matmul,
        torch.cat([preconditioner.whiten(of.target), probes.whitened], dim=1),
        fixed(cap),
        [Output(0, None)],
        preconditioner,
        reference={0: float(n)},
        tolerance=settings.value,
    )
    scale = run.squares[0].clone()
    scale[0] = float(n)
    worst = (run.squares / scale).max(1).values.sqrt()  # (J + 1,)
    below = (worst <= settings.percent).nonzero()
    return Course(
        log_det=log_det_series(run, slice(1, None)),
        quadratic=quadratic_series(run, 0),
        ended=run.status is CGStatus.CONVERGED,
        iterations_to_percent=int(below[0, 0]) if len(below) else None,
    )
