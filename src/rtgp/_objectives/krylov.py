"""CG and RR-CG: the negative log marginal likelihood and its gradient from one batched run of conjugate gradients.

The two methods, and the run to working precision, differ in their `Truncation` alone (Sec. 4.1 of the paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._objectives.control_coefficients import CoefficientSettings
from rtgp._objectives.control_variate import ControlVariate, Slopes
from rtgp._objectives.information import average_information, combined
from rtgp._objectives.krylov_run import KrylovRun, Truncation
from rtgp._objectives.protocol import (
    Batch,
    EstimateRequest,
    EstimateStats,
    LossEstimate,
)
from rtgp._precision import PrecisionSettings, WorkingPrecision
from rtgp._preconditioners import Preconditioner, PreconditionerSettings
from rtgp._preconditioners.amplification import reach_of
from rtgp._preconditioners.policy import Policy
from rtgp._preconditioners.policy_settings import PolicySettings
from rtgp._solvers import (
    NoiseUnits,
    Output,
    Recordings,
    conjugate_gradients,
)
from rtgp._state import State, saved_tensor
from rtgp._traces import ProbeKind, draw_probes, draw_seed, every_direction
from rtgp.errors import ConvergenceError, OutOfMemoryError, RTGPError
from rtgp.operators import group_for, make_from_form
from rtgp.operators._choose import still_serves
from rtgp.truncation import fixed


@dataclass(frozen=True)
class EstimateSettings:
    """Every number that an estimate by conjugate gradients decides by.

    Attributes
    ----------
    policy : PolicySettings
        Which preconditioner is kept, and when it is rebuilt.
    coefficients : CoefficientSettings
        How much of its control variate is used.
    precision : PrecisionSettings
        Whether float32 serves.
    exact_points : int
        Rows of a system up to which an automatic setting takes as many probes as rows, one for each direction, and ends
        no series early. The estimate is then exact. On a few dozen rows that costs no more than what surrounds it, and
        a plain loop of Adam feels no noise that nobody needs. 0: never.
    """

    policy: PolicySettings = field(default_factory=PolicySettings)
    coefficients: CoefficientSettings = field(default_factory=CoefficientSettings)
    precision: PrecisionSettings = field(default_factory=PrecisionSettings)
    exact_points: int = 64


@dataclass(frozen=True)
class KrylovSettings:
    """Everything that defines a CG or RR-CG objective."""

    name: str
    truncation: Truncation
    probes: int
    probe_kind: ProbeKind
    preconditioner: PreconditionerSettings | None
    refresh: int | None  # calls after which the preconditioner is rebuilt; None: when that pays
    warm_start: bool
    tolerance: float | None
    operator: str
    control_variate: bool = False  # for probes of covariance P
    automatic: bool = False  # whether probes and truncation are ours to choose: on few points there is no randomness
    internal: EstimateSettings = field(default_factory=EstimateSettings)


class KrylovObjective:
    """Holds the preconditioner and the last solution between calls; both may be stale without any bias.

    Parameters
    ----------
    frozen : bool
        For deterministic optimisers. Nothing depends on earlier calls but the preconditioner, which stays the first
        one; RR-CG runs its series to working precision, and its gradient is then the derivative of its value. (That of
        plain CG is so only where its iterations suffice.)
    """

    def __init__(self, settings: KrylovSettings, frozen: bool = False) -> None:
        self.settings, self.frozen = settings, frozen
        control = settings.control_variate and settings.probe_kind == "preconditioner" and not frozen
        columns = 2 + settings.probes
        self._policy = Policy(settings.preconditioner, settings.refresh, columns, control, settings.internal.policy)
        self._last_solve: Tensor | None = None  # (K + noise)^-1 residual, (n, t)
        self._precision = WorkingPrecision(settings.internal.precision, reach_of)
        self._operator = settings.operator  # "tiled" in place of "auto" once memory has run out
        self._kind: tuple[int, torch.dtype, torch.device] | None = None
        self._system: NoiseUnits | None = None  # of the last call: its memory serves the next one
        self._recordings = Recordings()
        self._control_variate = ControlVariate(settings.internal.coefficients)

    def release(self) -> None:
        """Free what is kept for the next call: the stored kernel and, on a card, recordings of runs with it.

        The next call makes them again.
        """
        self._system = None
        self._recordings.release()

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy, which makes its own memory and recordings."""
        return {**self.__dict__, "_system": None, "_recordings": Recordings()}

    def reset(self) -> None:
        self._precision.reset()
        self._operator = self.settings.operator
        self._forget()

    def _forget(self) -> None:
        """All that belongs to one system."""
        self.release()
        self._policy.reset()
        self._control_variate.reset()
        self._last_solve = None

    def overcome(self, error: RTGPError) -> str | None:
        if isinstance(error, OutOfMemoryError):
            return self._store_nothing()
        widened = self._precision.overcome(error)
        return widened or (self._policy.enlarge() if isinstance(error, ConvergenceError) else None)

    def _store_nothing(self) -> str | None:
        if self._operator != "auto":
            return None
        self._operator = "tiled"
        self.release()
        return "the kernel matrix is no longer stored: its entries are computed in every product"

    def state_dict(self) -> State:
        """Everything held between calls: with it and the generator's state, the next call repeats bit for bit."""
        state = self._precision.findings()
        if self._last_solve is not None:
            state["last_solve"] = self._last_solve
            for part in (self._policy.state_dict(), self._control_variate.state_dict(), self._precision.reach_state()):
                state.update(part)
        return state

    def load_state_dict(self, state: State) -> None:
        self.reset()
        self._precision.load_state_dict(state)
        if "last_solve" not in state:
            return
        self._last_solve = saved_tensor(state, "last_solve", (None, None), (torch.float32, torch.float64))
        n, dtype = len(self._last_solve), self._last_solve.dtype
        self._kind = (n, dtype, self._last_solve.device)
        self._policy.load_state_dict(state, dtype, group_for(self.settings.operator), n)
        self._control_variate.load_state_dict(state)

    def __call__(
        self, batch: Batch, generator: torch.Generator | None, request: EstimateRequest | None = None
    ) -> LossEstimate:
        request = EstimateRequest() if request is None else request
        # Pivots have a stream of their own: whether they are drawn in this call does not change the probes.
        pivots = torch.Generator().manual_seed(draw_seed(generator))
        control = type(self._policy.control)
        batch, system, preconditioner, rebuilt = self._prepared(batch, pivots, request)
        if type(self._policy.control) is not control:
            self._control_variate.of_another()
        earlier = self._last_solve
        run = self._run(system, preconditioner, batch, generator, request)
        *_, plain = run.y_solves()
        if not request.hold or self._last_solve is None:
            self._last_solve = system.scaled(plain)

        # First what waits for the device, then what is launched on it, then what the host does meanwhile.
        quadratic, log_det_noise, limits = run.quadratic(), system.log_det_noise().cpu(), system.limits()
        slopes, information = None, None
        if batch.requires_grad:
            if request.information is not None:
                information = self._information(system, preconditioner, batch, earlier, request)
                self._control_variate.measure_by(information)
            slopes = self._slopes(run, batch, request)
        if not (request.hold or request.complete):
            self._policy.used(run.result.iterations, 0.0 if slopes is None else slopes.noise, run.spread())
        logdets = run.log_det() + log_det_noise
        logdet = logdets.mean()
        constant = system.size * math.log(2.0 * math.pi)
        value = (0.5 * (batch.outputs * (logdet + constant) + quadratic)).to(system.device)
        result = run.result
        stats = EstimateStats(
            method=self.settings.name,
            dtype=system.dtype,
            log_det=float(logdet),
            quadratic=float(quadratic),
            condition=limits.condition,
            rounding=limits.rounding,
            iterations=result.iterations,
            truncations=result.truncations,
            residual=result.residual,
            frozen=result.frozen,
            columns=result.gamma.shape[1],
            rank=preconditioner.rank,
            neighbours=preconditioner.neighbours,
            preconditioner_reason=self._policy.reason,
            rebuilt=rebuilt,
            probe_kind=self._probe_kind(),
            value_error=0.0 if run.exact else run.value_error(logdets),
            dtype_reason=self._precision.reason,
            outputs=batch.outputs,
        )
        if slopes is None:
            return LossEstimate(value, value, stats)
        return LossEstimate(slopes.surrogate, value, stats, slopes.contrast, information)

    def _slopes(self, run: KrylovRun, batch: Batch, request: EstimateRequest) -> Slopes:
        policy, contrast = self._policy, request.contrast and not self.frozen and self.settings.probes > 1
        if run.exact:
            exact = self._control_variate.slopes(run, run.gradient_vectors(), None, 0.0, batch, request, False)
            return replace(exact, contrast=0.0 * exact.surrogate if contrast else None)
        vectors = run.derivative_of_value_vectors() if self.frozen else run.gradient_vectors()
        return self._control_variate.slopes(run, vectors, policy.control, policy.guess, batch, request, contrast)

    def _information(
        self,
        system: NoiseUnits,
        preconditioner: Preconditioner,
        batch: Batch,
        start: Tensor | None,
        request: EstimateRequest,
    ) -> Tensor:
        """The average-information matrix, a function of the parameters alone up to its tolerance.

        It has its own solves, without probes and roulette, so that a step in this metric keeps the mean of an unbiased
        gradient.
        """

        def solve(v: Tensor, reference: dict[int, float] | None = None) -> Tensor:
            outputs = [Output(k, None) for k in range(v.shape[1])]
            ends, tolerance = fixed(request.iterations), request.information
            run = conjugate_gradients(
                system.matmul,
                preconditioner.whiten(v),
                ends,
                outputs,
                preconditioner,
                reference=reference,
                tolerance=tolerance,
                chunk=system.chunk,
                recordings=self._recordings,
            )
            return run.solutions

        target = system.scaled(batch.residuals.detach().to(system.dtype))
        begin = torch.zeros_like(target) if start is None else system.unscaled(start)
        sizes = dict.fromkeys(range(batch.outputs), float(system.size))
        alpha = begin + solve(system.remainder(target, begin), sizes)
        # A single request takes every output; a training takes one combination of them.
        alpha = system.scaled(alpha if request.once else combined(alpha, target))
        return average_information(batch, system, alpha, solve, request.parameters)

    def _system_of(self, form: KernelForm, noise: Tensor) -> NoiseUnits:
        """The system of the last call in the same memory, or a new one."""
        held = self._system
        serves = held is not None and (self._operator != "auto" or still_serves(held.operator, form, noise))
        if held is not None and serves and held.renew(form, noise):
            return held
        del held
        self.release()  # its memory is free for the new one
        return NoiseUnits(make_from_form(form, self._operator, float(noise.detach().min())), noise)

    def _prepared(
        self, batch: Batch, pivots: torch.Generator, request: EstimateRequest
    ) -> tuple[Batch, NoiseUnits, Preconditioner, bool]:
        """The batch in the precision that serves, its system, the preconditioner and whether that is new."""
        given, notices = (batch.form, batch.noise), request.notices
        working = replace(batch, form=self._precision.form(*given, notices))
        system = self._system_of(working.form, batch.noise)
        if self._precision.goes_over(system, *given, notices):
            del system  # its memory is free for the new one
            working = replace(batch, form=self._precision.form(*given, notices))
            system = self._system_of(working.form, batch.noise)
        self._forget_other_systems(system)
        if self._last_solve is not None and self._last_solve.shape[1] != batch.outputs:
            self._last_solve = None
        self._policy.columns = 1 + batch.outputs + self.settings.probes
        policy, keep = self._policy, self.frozen
        return working, system, *policy.preconditioner(system, pivots, keep, request.once, request.hold and not keep)

    def _forget_other_systems(self, system: NoiseUnits) -> None:
        """Forget what fits another size, precision or device. In another precision the last solve is still near."""
        kind = (system.size, system.dtype, system.device)
        if self._kind is not None and self._kind != kind:
            if (self._kind[0], self._kind[2]) == (kind[0], kind[2]):
                self._policy.forget()
                self._last_solve = None if self._last_solve is None else self._last_solve.to(system.dtype)
            else:
                self._precision.keep_only_findings()
                self._operator = self.settings.operator
                self._forget()
        self._kind = kind
        self._system = system

    def _probe_kind(self) -> ProbeKind:
        return "preconditioner" if self.frozen else self.settings.probe_kind

    def _run(
        self,
        system: NoiseUnits,
        preconditioner: Preconditioner,
        batch: Batch,
        generator: torch.Generator | None,
        request: EstimateRequest,
    ) -> KrylovRun:
        settings, n, p = self.settings, system.size, self.settings.probes
        target, t = system.scaled(batch.residuals.detach().to(system.dtype)), batch.outputs
        start, remainder = torch.zeros_like(target), target
        if settings.warm_start and not self.frozen and self._last_solve is not None:
            start = system.unscaled(self._last_solve)
            remainder = system.remainder(target, start)

        kind, exact = self._probe_kind(), settings.automatic and n <= settings.internal.exact_points
        if exact:
            p = n
            probes = every_direction(n, preconditioner, system.dtype, system.device)
        else:
            probes = draw_probes(kind, n, p, preconditioner, generator, system.dtype, system.device)
        columns, value_columns = [preconditioner.whiten(remainder), probes.whitened], slice(t, t + p)
        if kind != "preconditioner":  # only probes of covariance P give log|A|: one more column, for the value alone
            extra = draw_probes("preconditioner", n, 1, preconditioner, generator, system.dtype, system.device)
            columns, value_columns = [*columns, extra.whitened], slice(t + p, t + p + 1)
        residual = torch.cat(columns, dim=1)

        truncation = settings.truncation
        if exact or ((self.frozen or request.complete) and settings.name != "cg"):
            truncation = Truncation.plain(None)
        weighting = truncation.start(generator)
        weighting.require_support(n)
        outputs = [Output(k, draw) for draw in (truncation.first, truncation.second, None) for k in range(t)]
        outputs += [Output(t + k, truncation.probes) for k in range(p)]
        result = conjugate_gradients(
            system.matmul,
            residual,
            weighting,
            outputs,
            preconditioner,
            groups=[slice(0, t), slice(t, residual.shape[1])],
            # A y-column is measured against n, the size of y^T (K + noise)^-1 y: a good start shows as progress.
            reference=dict.fromkeys(range(t), float(n)),
            tolerance=settings.tolerance,
            keep_basis=value_columns if self.frozen and not exact else None,
            max_iterations=request.most_iterations,
            chunk=system.chunk,
            recordings=self._recordings,
        )
        ends = target, start, remainder, result
        return KrylovRun(system, preconditioner, truncation, probes, value_columns, *ends, exact=exact)
