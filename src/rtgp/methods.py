"""The settings of each method: small frozen objects that check themselves and make the objective."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from rtgp.baselines import POE, SGGP, SVGP, Vecchia
from rtgp.distributed import active
from rtgp.errors import SettingError
from rtgp.estimators import ProbeKind, check_probe_kind
from rtgp.objectives import (
    FREQUENCIES,
    CholeskyObjective,
    FourierObjective,
    FourierSettings,
    KrylovObjective,
    KrylovSettings,
    Objective,
    SingleSampleObjective,
    SingleSampleSettings,
    Truncation,
)
from rtgp.operators import is_sharded
from rtgp.preconditioners import Automatic, LowRankAndNeighbours, Neighbours, PivotedCholesky, PreconditionerSettings
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
    preconditioner: PreconditionerSettings | None = field(default_factory=lambda: PivotedCholesky(5, "greedy"))
    probe_kind: ProbeKind = "rademacher"
    refresh: int | None = 1
    warm_start: bool = False
    tolerance: float | None = None
    operator: str = "auto"
    control_variate: bool = False

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
    float32 and 1e-8 in float64. control_variate: for probes of the preconditioner's covariance, its own derivative.
    """

    truncation: SurvivalRule = field(default_factory=ResidualDriven)
    probes: int = 10
    preconditioner: PreconditionerSettings | None = field(default_factory=Automatic)
    probe_kind: ProbeKind = "preconditioner"
    coupling: str = "max"
    refresh: int | None = None
    warm_start: bool = True
    tolerance: float | None = None
    operator: str = "auto"
    control_variate: bool = True

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
            "control_variate": False,
        }
        return cls(**{**settings, **changes})

    def make_objective(self, frozen: bool = False) -> Objective:
        plan = Truncation.coupled if self.coupling == "max" else Truncation.independent
        return _krylov(self, "rr-cg", plan(self.truncation), frozen)


@dataclass(frozen=True)
class RFF:
    """Random Fourier features in place of the kernel: O(n J^2), biased towards overfitting (Theorem 2).

    For RBF and Matern kernels, their sums and products. It learns hyperparameters only: predictions are the exact GP's.
    features: J, columns of the feature matrix, cosines and sines together: even, at most n. None: 1000, or n if that is
    less (`MarginalLogLikelihood.last.features` tells).
    frequencies: "random", "orthogonal" (d at a time at right angles, as unbiased for the kernel), or "grid"
    (equispaced, with weights: not random, far more accurate; for one or two inputs).
    redraw: new frequencies in every call, so that training follows the mean over frequencies; False: those of the first
    call are kept, so that training fits their kernel.
    """

    features: int | None = None
    frequencies: str = "random"
    redraw: bool = True

    def __post_init__(self) -> None:
        if self.features is not None:
            _positive_integer(self, "features")
            if self.features % 2:
                raise SettingError(
                    "The 'features' parameter of RFF must be even: it counts cosines and sines, which come in pairs. "
                    f"Got {self.features} instead."
                )
        _one_of(self, "frequencies", FREQUENCIES)
        _one_of(self, "redraw", (True, False))

    def make_objective(self, frozen: bool = False) -> Objective:
        return FourierObjective(FourierSettings(self.features, self.frequencies, self.redraw and not frozen))


@dataclass(frozen=True)
class SSRFF:
    """Random Fourier features with the bias turned into variance: a Single Sample over a ladder of feature counts.

    Unbiased, since the last rung of the ladder is the exact kernel; so it costs O(n^3) now and then. The variance is
    large wherever RFF's bias is: docs/theory/fourier.md says when to prefer RRCG().
    minimum: columns of features at the base, part of every estimate; at most n/2. None: n/8.
    step: columns from rung to rung, up to n/2, or "doubling". An odd rung takes one more: a frequency is two columns.
    probabilities: "fitted" (to the size of each rung's difference in earlier calls) or "paper" (1/J).
    scaled: multiply the features' gradients by their regression coefficient on the exact one in earlier calls, which
    falls from 1 to 0 as training nears the optimum: there they have nothing in common with it.
    frequencies: "random" or "orthogonal".
    """

    minimum: int | None = None
    step: int | str = "doubling"
    probabilities: str = "fitted"
    scaled: bool = True
    frequencies: str = "random"

    def __post_init__(self) -> None:
        if self.minimum is not None:
            _positive_integer(self, "minimum")
        if isinstance(self.step, bool) or not (
            self.step == "doubling" or (isinstance(self.step, int) and self.step >= 1)
        ):
            raise SettingError(
                f"The 'step' parameter of SSRFF must be a positive integer or 'doubling'. Got {self.step!r} instead."
            )
        _one_of(self, "probabilities", ("fitted", "paper"))
        _one_of(self, "scaled", (True, False))
        _one_of(self, "frequencies", ("random", "orthogonal"))

    @classmethod
    def paper(cls, **changes: Any) -> SSRFF:
        """The setting of Potapczynski et al. (2021): 500 features, steps of 100, P(J) proportional to 1/J."""
        return cls(**{"minimum": 500, "step": 100, "probabilities": "paper", "scaled": False, **changes})

    def make_objective(self, frozen: bool = False) -> Objective:
        settings = SingleSampleSettings(self.minimum, self.step, self.probabilities, self.scaled, self.frequencies)
        return SingleSampleObjective(settings, frozen)


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
        control_variate=method.control_variate,
    )
    return KrylovObjective(settings, frozen)


def _positive_integer(method: Any, name: str) -> None:
    value = getattr(method, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(
            f"The '{name}' parameter of {type(method).__name__} must be a positive integer. Got {value!r} instead."
        )


def _one_of(method: Any, name: str, choices: tuple[Any, ...]) -> None:
    value = getattr(method, name)
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        words = ", ".join(repr(choice) for choice in choices)
        raise SettingError(
            f"The '{name}' parameter of {type(method).__name__} must be one of {words}. Got {value!r} instead."
        )


def _check_krylov(method: CG | RRCG) -> None:
    _positive_integer(method, "probes")
    if method.refresh is not None:
        _positive_integer(method, "refresh")
    check_probe_kind(method.probe_kind)
    kinds = (PivotedCholesky, Neighbours, LowRankAndNeighbours, Automatic)
    if method.preconditioner is not None and not isinstance(method.preconditioner, kinds):
        raise SettingError(
            f"The 'preconditioner' parameter of {type(method).__name__} must be a PivotedCholesky, Neighbours, "
            f"LowRankAndNeighbours, Automatic or None. Got {method.preconditioner!r} instead."
        )
    for name in ("warm_start", "control_variate"):
        _one_of(method, name, (True, False))
    tolerance = method.tolerance
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and 0.0 < tolerance < 1.0):
        raise SettingError(
            f"The 'tolerance' parameter of {type(method).__name__} must be None or between 0 and 1. "
            f"Got {tolerance!r} instead."
        )


METHODS: dict[str, type[Any]] = {
    "cholesky": Cholesky,
    "cg": CG,
    "rr-cg": RRCG,
    "rff": RFF,
    "ss-rff": SSRFF,
    "svgp": SVGP,
    "poe": POE,
    "sggp": SGGP,
    "vecchia": Vecchia,
}
AnyMethod = Method | SVGP | POE


def resolve_method(method: str | AnyMethod) -> AnyMethod:
    """A method from its name, or the object itself."""
    if isinstance(method, str):
        if method not in METHODS:
            names = ", ".join(repr(name) for name in METHODS)
            raise SettingError(
                f"The 'method' parameter must be one of {names}, or a settings object. Got {method!r} instead."
            )
        made: AnyMethod = METHODS[method]()
        return made
    if isinstance(method, type) or not (hasattr(method, "make_objective") or isinstance(method, (SVGP, POE))):
        raise SettingError(
            "The 'method' parameter must be a name or a settings object such as rtgp.RRCG(). "
            f"Got {method!r:.100} instead."
        )
    return method


M = TypeVar("M")


def anywhere(method: M) -> M:
    """The same method on one process: what is computed does not depend on how many there are."""
    if isinstance(method, (CG, RRCG, POE)) and is_sharded(method.operator):
        return replace(method, operator="auto")
    return method


def spread_operator(method: object) -> str:
    """The operator of a method that is spread over ranks, while there are some; "auto" otherwise, so that what was
    learned on many processes predicts on one."""
    operator = getattr(method, "operator", "auto")
    return operator if active() and is_sharded(operator) else "auto"


def likelihood_method(method: str | AnyMethod) -> Method:
    """The same, of those that estimate the likelihood of a model they are given."""
    found = resolve_method(method)
    if isinstance(found, (SVGP, POE)):
        raise SettingError(
            f"{type(found).__name__} is a model of its own, not an estimate of the likelihood of a given one: use "
            f"rtgp.GPRegressor(method={found!r}), which makes the model, trains it and predicts from it."
        )
    return found
