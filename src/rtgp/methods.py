"""The settings of each method: small frozen objects that check themselves and make the objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rtgp.errors import SettingError
from rtgp.estimators import ProbeKind, check_probe_kind
from rtgp.objectives import CholeskyObjective, KrylovObjective, KrylovSettings, Objective, Truncation
from rtgp.solvers import PivotedCholesky
from rtgp.truncation import ExponentialDecay, ResidualDriven, SurvivalRule


class Method(Protocol):
    """How the log marginal likelihood is to be estimated."""

    def make_objective(self, frozen: bool = False) -> Objective:
        """A new objective; frozen: a deterministic surface, for optimisers that need one."""
        ...


@dataclass(frozen=True)
class Cholesky:
    """Exact: O(n^3) time, O(n^2) memory."""

    def make_objective(self, frozen: bool = False) -> Objective:
        return CholeskyObjective()


@dataclass(frozen=True)
class CG:
    """Plain conjugate gradients, truncated after `iterations`: cheap, and biased towards underfitting (Theorem 1)."""

    iterations: int = 100
    probes: int = 10
    preconditioner: PivotedCholesky | None = field(default_factory=lambda: PivotedCholesky(5, "greedy"))
    probe_kind: ProbeKind = "rademacher"
    refresh: int | None = 1
    warm_start: bool = False
    tolerance: float | None = None
    operator: str = "auto"

    def __post_init__(self) -> None:
        _positive_integer(self, "iterations")
        _check_krylov(self)

    def make_objective(self, frozen: bool = False) -> Objective:
        return _krylov(self, "cg", Truncation.plain(self.iterations), frozen)


@dataclass(frozen=True)
class RRCG:
    """Conjugate gradients truncated by Russian roulette: the optimum of the exact method, at the price of CG.

    truncation: a rule from rtgp.truncation. The default follows the residual of the run itself.
    coupling: "max": the rule gives the length of the run, J_z = max(J_1, J_2), and the two y-solves share it;
    "independent": three truncations, each by the rule (the paper's).
    refresh: calls after which the preconditioner is made anew; None: when the iterations it would save are worth it,
    with the rank that makes a step cheapest. tolerance: error ratio at which a column has converged, by default 1e-4 in
    float32 and 1e-8 in float64.
    """

    truncation: SurvivalRule = field(default_factory=ResidualDriven)
    probes: int = 10
    preconditioner: PivotedCholesky | None = field(default_factory=PivotedCholesky)
    probe_kind: ProbeKind = "preconditioner"
    coupling: str = "max"
    refresh: int | None = None
    warm_start: bool = True
    tolerance: float | None = None
    operator: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.truncation, type) or not isinstance(self.truncation, SurvivalRule):
            raise SettingError(
                "The 'truncation' parameter of RRCG must be a rule from rtgp.truncation, such as "
                f"ExponentialDecay(rate=0.05, minimum=80) or ResidualDriven(). Got {self.truncation!r} instead."
            )
        if self.coupling not in ("max", "independent"):
            raise SettingError(
                f"The 'coupling' parameter of RRCG must be 'max' or 'independent'. Got {self.coupling!r} instead."
            )
        _check_krylov(self)

    @classmethod
    def paper(cls, **changes: Any) -> RRCG:
        """The setting of Potapczynski et al. (2021): E[J] = 100, rank-5 preconditioner, no warm start."""
        settings: dict[str, Any] = {
            "truncation": ExponentialDecay(rate=0.05, minimum=80),
            "preconditioner": PivotedCholesky(5, "greedy"),
            "probe_kind": "rademacher",
            "coupling": "independent",
            "refresh": 1,
            "warm_start": False,
        }
        return cls(**{**settings, **changes})

    def make_objective(self, frozen: bool = False) -> Objective:
        plan = Truncation.coupled if self.coupling == "max" else Truncation.independent
        return _krylov(self, "rr-cg", plan(self.truncation), frozen)


def _krylov(method: CG | RRCG, name: str, truncation: Truncation, frozen: bool) -> KrylovObjective:
    settings = KrylovSettings(
        name=name,
        truncation=truncation,
        probes=method.probes,
        probe_kind=method.probe_kind,
        preconditioner=method.preconditioner,
        refresh=method.refresh,
        warm_start=method.warm_start,
        tolerance=method.tolerance,
        operator=method.operator,
    )
    return KrylovObjective(settings, frozen)


def _positive_integer(method: Any, name: str) -> None:
    value = getattr(method, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(
            f"The '{name}' parameter of {type(method).__name__} must be a positive integer. Got {value!r} instead."
        )


def _check_krylov(method: CG | RRCG) -> None:
    _positive_integer(method, "probes")
    if method.refresh is not None:
        _positive_integer(method, "refresh")
    check_probe_kind(method.probe_kind)
    if method.preconditioner is not None and not isinstance(method.preconditioner, PivotedCholesky):
        raise SettingError(
            f"The 'preconditioner' parameter of {type(method).__name__} must be a PivotedCholesky or None. "
            f"Got {method.preconditioner!r} instead."
        )
    if not isinstance(method.warm_start, bool):
        raise SettingError(
            f"The 'warm_start' parameter of {type(method).__name__} must be True or False. "
            f"Got {method.warm_start!r} instead."
        )
    tolerance = method.tolerance
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and 0.0 < tolerance < 1.0):
        raise SettingError(
            f"The 'tolerance' parameter of {type(method).__name__} must be None or between 0 and 1. "
            f"Got {tolerance!r} instead."
        )


METHODS: dict[str, type[Any]] = {"cholesky": Cholesky, "cg": CG, "rr-cg": RRCG}


def resolve_method(method: str | Method) -> Method:
    """A method from its name, or the object itself."""
    if isinstance(method, str):
        if method not in METHODS:
            names = ", ".join(repr(name) for name in METHODS)
            raise SettingError(
                f"The 'method' parameter must be one of {names}, or a settings object. Got {method!r} instead."
            )
        made: Method = METHODS[method]()
        return made
    if isinstance(method, type) or not hasattr(method, "make_objective"):
        raise SettingError(
            "The 'method' parameter must be a name or a settings object such as rtgp.RRCG(). "
            f"Got {method!r:.100} instead."
        )
    return method
