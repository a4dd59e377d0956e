"""CG and RR-CG: the negative log marginal likelihood and its gradient from one batched run of conjugate gradients.

The two methods, and the run to working precision, differ in their `Truncation` alone (Sec. 4.1 of the paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rtgp.errors import ConvergenceError, OutOfMemoryError, RTGPError
from rtgp.estimators import ProbeKind, draw_probes
from rtgp.kernels import KernelForm
from rtgp.kernels.likeness import common_rounding
from rtgp.objectives.control_coefficients import Coefficients, by_cost
from rtgp.objectives.gradient_terms import Term, evaluated
from rtgp.objectives.information import average_information
from rtgp.objectives.krylov_run import KrylovRun, Truncation
from rtgp.objectives.protocol import (
    Batch,
    EstimateStats,
    Extras,
    LossEstimate,
    gradient_of,
)
from rtgp.operators import group_for, make_from_form
from rtgp.operators.triton.availability import usable
from rtgp.preconditioners import Preconditioner, PreconditionerSettings
from rtgp.preconditioners.amplification import Reach
from rtgp.preconditioners.neighbour_control import NeighbourControl
from rtgp.preconditioners.policy import Policy, PolicySettings
from rtgp.solvers import (
    Output,
    Recordings,
    WhitenedSystem,
    conjugate_gradients,
)
from rtgp.solvers.system import warn_of_failure, warn_of_products, warn_of_rounding
from rtgp.state import State, saved_flag, saved_number, saved_tensor
from rtgp.truncation import fixed

_GROWTH = 1.25  # of the expected rounding in products, from which on it is measured again


@dataclass(frozen=True)
class KrylovSettings:
    """Everything that defines a CG or RR-CG objective."""

    name: str
    truncation: Truncation
    probes: int
    probe_kind: ProbeKind
    preconditioner: PreconditionerSettings | None
    refresh: int | None  # calls after which the preconditioner is made anew; None: when that pays
    warm_start: bool
    tolerance: float | None
    operator: str
    control_variate: bool = False  # for probes of covariance P
    policy: PolicySettings = field(default_factory=PolicySettings)


class KrylovObjective:
    """Holds the preconditioner and the last solution between calls; both may be stale without any bias.

    frozen: for deterministic optimisers. Nothing depends on earlier calls but the preconditioner, which stays the first
    one; RR-CG runs its series to working precision, and its gradient is then the derivative of its value. (That of
    plain CG is so only where its iterations suffice.)
    """

    def __init__(self, settings: KrylovSettings, frozen: bool = False) -> None:
        self.settings, self.frozen = settings, frozen
        control = settings.control_variate and settings.probe_kind == "preconditioner" and not frozen
        columns = 2 + settings.probes
        self._policy = Policy(settings.preconditioner, settings.refresh, columns, control, settings.policy)
        self._last_solve: Tensor | None = None  # (K + noise)^-1 residual, (n, 1)
        self._warned = False  # that the precision cannot serve; where there is a form in float64, that is used since
        self._warned_of_float64 = False  # and warned that float64 cannot either
        self._measured = 0.0  # `expected_product_error` where the error was last looked at
        self._widenable = False  # whether the last call was in float32 and had a form in float64
        self._reach = Reach()  # of errors in the system
        self._operator = settings.operator  # "tiled" in place of "auto" once memory has run out
        self._kind: tuple[int, torch.dtype, torch.device] | None = None
        self._system: WhitenedSystem | None = None  # where a card keeps recordings of its products
        self._recordings = Recordings()
        self._coefficients = Coefficients()  # of the control variate
        self._by_cost: Tensor | None = None  # the metric in which they are learnt: of the last information matrix

    def release(self) -> None:
        """Free what a card keeps for the next call: the stored kernel and recordings of runs with it. That makes them
        anew."""
        self._system = None
        self._recordings.release()

    def reset(self) -> None:
        self.release()
        self._warned, self._warned_of_float64, self._measured = False, False, 0.0
        self._reach = Reach()
        self._operator, self._widenable = self.settings.operator, False
        self._policy.reset()
        self._coefficients.reset()
        self._by_cost = None
        self._last_solve = None

    def overcome(self, error: RTGPError) -> str | None:
        if isinstance(error, OutOfMemoryError):
            return self._store_nothing()
        return self._widen(error) or (self._policy.enlarge() if isinstance(error, ConvergenceError) else None)

    def _store_nothing(self) -> str | None:
        if self._operator != "auto":
            return None
        self._operator = "tiled"
        self.release()
        return "the kernel matrix is no longer stored: its entries are computed in every product"

    def _widen(self, error: RTGPError) -> str | None:
        """To float64, if there is a form in it."""
        if self._warned or not self._widenable:
            return None
        self._warned = True
        warn_of_failure(error)
        return "computed in float64 from here on"

    def state_dict(self) -> State:
        """Everything held between calls: with it and the generator's state, the next call repeats bit for bit."""
        state: State = {
            "warned": self._warned,
            "warned of float64": self._warned_of_float64,
            "measured": self._measured,
        }
        if self._last_solve is not None:
            state["last_solve"] = self._last_solve
            state.update(self._policy.state_dict())
            state.update(self._coefficients.state_dict())
            state.update(self._reach.state_dict())
            if self._by_cost is not None:
                state["by_cost"] = self._by_cost
        return state

    def load_state_dict(self, state: State) -> None:
        self.reset()
        state = {"warned of float64": False, "measured": 0.0, **state}  # not in checkpoints of older versions
        self._warned, self._warned_of_float64 = saved_flag(state, "warned"), saved_flag(state, "warned of float64")
        self._measured = saved_number(state, "measured", (0.0, math.inf))
        if "last_solve" not in state:
            return
        self._last_solve = saved_tensor(state, "last_solve", (None, 1), (torch.float32, torch.float64))
        n, dtype = len(self._last_solve), self._last_solve.dtype
        self._kind = (n, dtype, self._last_solve.device)
        self._policy.load_state_dict(state, dtype, group_for(self.settings.operator), n)
        self._coefficients.load_state_dict(state)
        self._reach.load_state_dict(state)
        if "by_cost" in state:
            p = len(saved_tensor(state, "by_cost", (None, None)))
            self._by_cost = saved_tensor(state, "by_cost", (p, p)).cpu()

    def __call__(self, batch: Batch, generator: torch.Generator | None, extras: Extras | None = None) -> LossEstimate:
        extras = Extras() if extras is None else extras
        # Pivots have a stream of their own: whether they are drawn in this call does not change the probes.
        pivots = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
        control = type(self._policy.control)
        batch, system, preconditioner, rebuilt = self._prepared(batch, pivots, extras)
        if type(self._policy.control) is not control:
            self._coefficients.reset()  # of another control variate
        earlier = self._last_solve
        run = self._run(system, preconditioner, batch, generator, extras.most_iterations)
        *_, plain = run.y_solves()
        if not extras.hold or self._last_solve is None:
            self._last_solve = system.whiten(plain[:, None])

        # What waits for the device comes first, then what is queued on it, then what the host does meanwhile.
        quadratic, log_det_noise, limits = run.quadratic(), system.log_det_noise().cpu(), system.limits()
        surrogate, contrast, information, noise = None, None, None, 0.0
        if batch.requires_grad:
            if extras.information is not None:
                information = self._information(system, preconditioner, batch, earlier, extras)
                if bool(torch.isfinite(information).all()):
                    self._by_cost = by_cost(information)
            surrogate, contrast, noise = self._gradients(system, run, batch, extras)
        if not extras.hold:
            self._policy.used(run.result.iterations, noise, run.spread())
        logdets = run.log_det() + log_det_noise
        logdet = logdets.mean()
        value = (0.5 * (logdet + quadratic + system.size * math.log(2.0 * math.pi))).to(system.device)
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
            value_error=run.value_error(logdets),
        )
        return LossEstimate(value if surrogate is None else surrogate, value, stats, contrast, information)

    def _gradients(
        self, system: WhitenedSystem, run: KrylovRun, batch: Batch, extras: Extras
    ) -> tuple[Tensor, Tensor | None, float]:
        """A scalar whose gradient is the estimate's; the contrast, one whose gradient has mean zero and the covariance
        of the estimate's, if it is wanted; and what that noise costs (0 where there is no metric to tell).

        All bilinear forms go through one pass over K. The control variate's coefficients learn from the contrast, for
        the calls to come; where M is dA itself only in calls that make a new metric, for its scatter takes another
        bilinear form.
        """
        first, second, _ = run.y_solves()
        control, wanted = self._policy.control, extras.contrast and not self.frozen and self.settings.probes > 1
        c = self._coefficients.values(self._policy.guess)  # (2,): of the kernel's part and of the noise's
        vectors = run.derivative_of_value_vectors() if self.frozen else run.gradient_vectors()
        terms = [Term(*vectors, solve=0.5 * (first + second))]
        if isinstance(control, NeighbourControl):
            terms[0] = replace(terms[0], less=run.probes.dual, taken=c)
        if wanted:
            scatter = Term(*run.contrast_vectors(), solve=0.5 * (first - second))
            learning = extras.information is not None
            if isinstance(control, NeighbourControl) and not learning:
                scatter = replace(scatter, less=run.probes.dual[:, : scatter.u.shape[1] - 1], taken=c)
            terms.append(scatter)
            if isinstance(control, NeighbourControl) and learning:
                terms.append(Term(*run.contrast_control_vectors()))
        found = evaluated(terms, system, batch)  # (2,) each
        surrogate = found[0].sum()
        if control is not None and bool(c.any()):
            surrogate = surrogate - c.to(found[0]) @ run.controlled(control, batch)
        if not wanted:
            return surrogate, None, 0.0
        plain = contrast = found[1].sum()
        parts: Tensor | None = None
        if isinstance(control, NeighbourControl) and not learning:
            plain = contrast = plain - c.to(found[1]) @ run.contrasted(control, batch, torch.zeros_like(found[1]))
        elif control is not None:
            parts = run.contrasted(control, batch, found[2] if isinstance(control, NeighbourControl) else None)
            contrast = plain - c.to(parts) @ parts
        size = sum(parameter.numel() for parameter in extras.parameters)
        if self._by_cost is None or self._by_cost.shape[1] != size:
            return surrogate, contrast, 0.0
        if parts is None:
            slope = self._by_cost @ gradient_of(plain, extras.parameters)
            return surrogate, contrast, float(slope.square().sum())
        x, *y = (self._by_cost @ gradient_of(scalar, extras.parameters) for scalar in (plain, *parts))
        noise = float((x - c @ torch.stack(y)).square().sum())
        if not extras.hold:
            self._coefficients.learn(x, torch.stack(y), self._policy.guess, noise)
        return surrogate, contrast, noise

    def _information(
        self,
        system: WhitenedSystem,
        preconditioner: Preconditioner,
        batch: Batch,
        start: Tensor | None,
        extras: Extras,
    ) -> Tensor:
        """A function of the parameters alone, up to its tolerance: it has its own solves, without probes and roulette,
        so that a step in this metric keeps the mean of an unbiased gradient."""

        def solve(v: Tensor, reference: dict[int, float] | None = None) -> Tensor:
            outputs = [Output(k, None) for k in range(v.shape[1])]
            ends, tolerance = fixed(extras.iterations), extras.information
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

        target = system.whiten(batch.residual.detach().to(system.dtype)[:, None])
        begin = torch.zeros_like(target) if start is None else system.unwhiten(start)
        alpha = system.whiten(begin + solve(system.remainder(target, begin), {0: float(system.size)}))
        return average_information(batch, system, alpha, solve, extras.parameters)

    def _system_of(self, form: KernelForm, noise: Tensor) -> WhitenedSystem:
        """The one of the last call in the same memory, or a new one."""
        if self._system is not None and self._system.renew(form, noise):
            return self._system
        self.release()  # its memory is free for the new one
        return WhitenedSystem(make_from_form(form, self._operator), noise)

    def _prepared(
        self, batch: Batch, pivots: torch.Generator, extras: Extras
    ) -> tuple[Batch, WhitenedSystem, Preconditioner, bool]:
        """The batch in the precision that serves, its system, the preconditioner and whether that is new."""
        working = replace(batch, form=self._form(batch))
        system = self._system_of(working.form, batch.noise)
        if self._products_are_felt(system, batch):
            del system  # its memory is free for the new one
            working = replace(batch, form=self._form(batch))
            system = self._system_of(working.form, batch.noise)
        self._forget_other_systems(system)
        policy, keep = self._policy, self.frozen
        return working, system, *policy.preconditioner(system, pivots, keep, extras.once, extras.hold and not keep)

    def _products_are_felt(self, system: WhitenedSystem, batch: Batch) -> bool:
        """Whether rounding in the products of this system is too much, so that float64 is to be taken instead. It is
        measured in the first call, and again where it is expected to have grown by a quarter."""
        if self._warned or system.dtype == torch.float64:
            return False
        expected = system.expected_product_error()
        if expected <= _GROWTH * self._measured:
            return False
        self._measured, wide = expected, batch.form.widened() is not None
        self._warned = warn_of_products(
            system, wide, lambda error: self._reach.reaching(error, batch.form, batch.noise)
        )
        return self._warned and wide

    def _form(self, batch: Batch) -> KernelForm:
        """In the precision of the model; from the first call on in which that cannot serve, in float64."""
        wide = batch.form.widened() if batch.form.dtype != torch.float64 else None
        self._widenable = wide is not None
        if not self._warned:
            factor = 1.0 if wide is None else common_rounding(batch.form)
            self._warned = warn_of_rounding(
                batch.limits(),
                wide is not None,
                factor,
                lambda error: self._reach.rounding_felt(error, batch.form, batch.noise),
            )
        if wide is None or not self._warned:
            return batch.form
        self._warned_of_float64 = self._warned_of_float64 or warn_of_rounding(batch.limits(torch.float64))
        return wide

    def _forget_other_systems(self, system: WhitenedSystem) -> None:
        """What is held fits one size, precision and device only. In another precision the last solve is still near."""
        kind = (system.size, system.dtype, system.device)
        if self._kind is not None and self._kind != kind:
            if (self._kind[0], self._kind[2]) == (kind[0], kind[2]):
                self._policy.forget()
                self._last_solve = None if self._last_solve is None else self._last_solve.to(system.dtype)
            else:
                warned, beyond = self._warned, self._warned_of_float64
                self.reset()
                self._warned, self._warned_of_float64 = warned, beyond
        self._kind = kind
        self._system = system if usable(system.device) else None

    def _probe_kind(self) -> ProbeKind:
        return "preconditioner" if self.frozen else self.settings.probe_kind

    def _run(
        self,
        system: WhitenedSystem,
        preconditioner: Preconditioner,
        batch: Batch,
        generator: torch.Generator | None,
        most_iterations: int | None,
    ) -> KrylovRun:
        settings, n, p = self.settings, system.size, self.settings.probes
        target = system.whiten(batch.residual.detach().to(system.dtype)[:, None])
        start, remainder = torch.zeros_like(target), target
        if settings.warm_start and not self.frozen and self._last_solve is not None:
            start = system.unwhiten(self._last_solve)
            remainder = system.remainder(target, start)

        kind = self._probe_kind()
        probes = draw_probes(kind, n, p, preconditioner, generator, system.dtype, system.device)
        columns, value_columns = [preconditioner.whiten(remainder), probes.whitened], slice(1, 1 + p)
        if kind != "preconditioner":  # only probes of covariance P give log|A|: one more column, for the value alone
            extra = draw_probes("preconditioner", n, 1, preconditioner, generator, system.dtype, system.device)
            columns, value_columns = [*columns, extra.whitened], slice(1 + p, 2 + p)
        residual = torch.cat(columns, dim=1)

        truncation = settings.truncation
        if self.frozen and settings.name != "cg":
            truncation = Truncation.plain(None)
        weighting = truncation.start(generator)
        weighting.require_support(n)
        outputs = [Output(0, truncation.first), Output(0, truncation.second), Output(0, None)]
        outputs += [Output(1 + k, truncation.probes) for k in range(p)]
        result = conjugate_gradients(
            system.matmul,
            residual,
            weighting,
            outputs,
            preconditioner,
            groups=[slice(0, 1), slice(1, residual.shape[1])],
            # The y-column is measured against n, the size of y^T (K + noise)^-1 y: a good start shows as progress.
            reference={0: float(n)},
            tolerance=settings.tolerance,
            keep_basis=value_columns if self.frozen else None,
            max_iterations=most_iterations,
            chunk=system.chunk,
            recordings=self._recordings,
        )
        return KrylovRun(system, preconditioner, truncation, probes, value_columns, target, start, remainder, result)
