"""CG and RR-CG: the negative log marginal likelihood and its gradient from one batched run of conjugate gradients.

The two methods, and the run to working precision, differ in their `Truncation` alone (Sec. 4.1 of the paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp.estimators import ProbeKind, draw_probes
from rtgp.objectives.krylov_run import KrylovRun, Truncation
from rtgp.objectives.protocol import Batch, EstimateStats, LossEstimate, State, surrogate_loss
from rtgp.operators import make_from_form
from rtgp.solvers import (
    IdentityPreconditioner,
    LowRankPlusIdentity,
    Output,
    PivotedCholesky,
    WhitenedSystem,
    conjugate_gradients,
)
from rtgp.solvers.system import warn_of_rounding


@dataclass(frozen=True)
class KrylovSettings:
    """Everything that defines a CG or RR-CG objective."""

    name: str
    truncation: Truncation
    probes: int
    probe_kind: ProbeKind
    preconditioner: PivotedCholesky | None
    refresh: int  # calls after which the preconditioner is made anew
    warm_start: bool
    tolerance: float | None
    operator: str


@dataclass
class _Held:
    """A preconditioner, how often it has been used, and how long the first run with it was."""

    preconditioner: LowRankPlusIdentity
    calls: int = 0
    first_iterations: int = 0
    last_iterations: int = 0

    def stale(self, refresh: int) -> bool:
        return self.calls >= refresh or self.last_iterations > 2 * self.first_iterations + 10


class KrylovObjective:
    """Holds the preconditioner and the last solution between calls; both may be stale without any bias.

    frozen: for deterministic optimisers. Nothing depends on earlier calls but the preconditioner, which stays the first
    one; RR-CG runs its series to working precision, and its gradient is then the derivative of its value. (That of
    plain CG is so only where its iterations suffice.)
    """

    def __init__(self, settings: KrylovSettings, frozen: bool = False) -> None:
        self.settings, self.frozen = settings, frozen
        self._held: _Held | None = None
        self._last_solve: Tensor | None = None  # (K + noise)^-1 residual, (n, 1)
        self._warned = False
        self._kind: tuple[int, torch.dtype, torch.device] | None = None

    def reset(self) -> None:
        self._warned = False
        self._held = None
        self._last_solve = None

    def state_dict(self) -> State:
        """Everything held between calls: with it and the generator's state, the next call repeats bit for bit."""
        state: State = {"warned": self._warned}
        if self._last_solve is not None:
            state["last_solve"] = self._last_solve
        if self._held is not None:
            held = self._held
            state.update(held.preconditioner.state_dict())
            state.update(calls=held.calls, first_iterations=held.first_iterations, last_iterations=held.last_iterations)
        return state

    def load_state_dict(self, state: State) -> None:
        self.reset()
        self._warned = bool(state["warned"])
        last_solve = state.get("last_solve")
        if isinstance(last_solve, Tensor):
            self._last_solve = last_solve
            self._kind = (last_solve.shape[0], last_solve.dtype, last_solve.device)
            if "calls" in state:
                preconditioner = LowRankPlusIdentity.from_state_dict(state, last_solve.dtype)
                counts = (int(state[name]) for name in ("calls", "first_iterations", "last_iterations"))
                self._held = _Held(preconditioner, *counts)

    def __call__(self, batch: Batch, generator: torch.Generator | None) -> LossEstimate:
        operator = make_from_form(batch.form, self.settings.operator)
        system = WhitenedSystem(operator, batch.noise)
        self._forget_other_systems(system)
        self._warned = self._warned or warn_of_rounding(system)
        # Pivots have a stream of their own: whether they are drawn in this call does not change the probes.
        pivots = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
        preconditioner, rebuilt = self._preconditioner(system, pivots)
        run = self._run(system, preconditioner, batch, generator)
        first, second, plain = run.y_solves()
        self._last_solve = system.whiten(plain[:, None])
        if self._held is not None:
            self._held.calls += 1
            self._held.last_iterations = run.result.iterations
            self._held.first_iterations = self._held.first_iterations or run.result.iterations

        logdet, quadratic = run.log_det() + system.log_det_noise(), run.quadratic()
        value = 0.5 * (logdet + quadratic + system.size * math.log(2.0 * math.pi))
        surrogate = value
        if batch.requires_grad:
            u, v = run.derivative_of_value_vectors() if self.frozen else run.gradient_vectors()
            u, v = system.whiten(u), system.whiten(v)  # dA = S dK S
            noise_weights = (u.double() * v.double()).sum(1)
            solve = system.whiten(0.5 * (first + second)[:, None])[:, 0]
            surrogate = surrogate_loss(operator.bilinear(u, v), noise_weights, solve, batch)
        result = run.result
        stats = EstimateStats(
            method=self.settings.name,
            dtype=system.dtype,
            log_det=float(logdet),
            quadratic=float(quadratic),
            condition=system.condition_bound(),
            rounding=system.rounding(),
            iterations=result.iterations,
            truncations=result.truncations,
            residual=result.residual,
            frozen=result.frozen,
            columns=result.gamma.shape[1],
            rank=preconditioner.rank,
            rebuilt=rebuilt,
            probe_kind=self._probe_kind(),
        )
        return LossEstimate(surrogate, value, stats)

    def _forget_other_systems(self, system: WhitenedSystem) -> None:
        """What is held fits one size, precision and device only."""
        kind = (system.size, system.dtype, system.device)
        if self._kind != kind:
            self.reset()
        self._kind = kind

    def _probe_kind(self) -> ProbeKind:
        return "preconditioner" if self.frozen else self.settings.probe_kind

    def _preconditioner(
        self, system: WhitenedSystem, generator: torch.Generator
    ) -> tuple[LowRankPlusIdentity | IdentityPreconditioner, bool]:
        wanted = self.settings.preconditioner
        if wanted is None:
            return IdentityPreconditioner(), False
        if self._held is not None and (self.frozen or not self._held.stale(self.settings.refresh)):
            return self._held.preconditioner, False
        columns = 2 + self.settings.probes
        factor = wanted.factor(system.kernel_diagonal(), system.kernel_rows, columns, generator)
        self._held = _Held(LowRankPlusIdentity(factor, system.dtype))
        return self._held.preconditioner, True

    def _run(
        self,
        system: WhitenedSystem,
        preconditioner: LowRankPlusIdentity | IdentityPreconditioner,
        batch: Batch,
        generator: torch.Generator | None,
    ) -> KrylovRun:
        settings, n, p = self.settings, system.size, self.settings.probes
        target = system.whiten(batch.residual.detach().to(system.dtype)[:, None])
        start, remainder = torch.zeros_like(target), target
        if settings.warm_start and not self.frozen and self._last_solve is not None:
            start = system.unwhiten(self._last_solve)
            remainder = target - system.matmul(start)

        kind = self._probe_kind()
        probes = draw_probes(kind, n, p, preconditioner, generator, system.dtype, system.device)
        columns, value_columns = [remainder, probes.z], slice(1, 1 + p)
        if kind != "preconditioner":  # only probes of covariance P give log|A|: one more column, for the value alone
            extra = draw_probes("preconditioner", n, 1, preconditioner, generator, system.dtype, system.device)
            columns, value_columns = [*columns, extra.z], slice(1 + p, 2 + p)
        rhs = torch.cat(columns, dim=1)

        truncation = settings.truncation
        if self.frozen and settings.name != "cg":
            truncation = Truncation.plain(None)
        weighting = truncation.start(generator)
        weighting.require_support(n)
        outputs = [Output(0, truncation.first), Output(0, truncation.second), Output(0, None)]
        outputs += [Output(1 + k, truncation.probes) for k in range(p)]
        result = conjugate_gradients(
            system.matmul,
            rhs,
            weighting,
            outputs,
            preconditioner,
            groups=[slice(0, 1), slice(1, rhs.shape[1])],
            # The y-column is measured against n, the size of y^T (K + noise)^-1 y: a good start shows as progress.
            reference={0: float(n)},
            tolerance=settings.tolerance,
            keep_basis=value_columns if self.frozen else None,
        )
        return KrylovRun(system, preconditioner, truncation, probes, value_columns, target, start, remainder, result)
