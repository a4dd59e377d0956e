"""The settings of each method: small frozen objects that check themselves and make the objective.

`_settings`, where a method has them, are the numbers that its objective decides by: for ablations, not for users. They
are no part of what a method is called, nor of a saved model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from rtgp._methods.checks import check_one_of, check_positive_integers
from rtgp._methods.facts import Method, OptimizerChoice
from rtgp._objectives import (
    FREQUENCIES,
    CholeskyObjective,
    CholeskySettings,
    EstimateSettings,
    EstimateStats,
    FourierObjective,
    FourierSettings,
    KrylovObjective,
    KrylovSettings,
    LadderSettings,
    Objective,
    SingleSampleObjective,
    SingleSampleSettings,
    Truncation,
)
from rtgp._preconditioners import Automatic, LowRankAndNeighbours, Neighbours, PivotedCholesky, PreconditionerSettings
from rtgp._traces import ProbeKind, check_probe_kind
from rtgp.errors import SettingError
from rtgp.operators import is_sharded
from rtgp.truncation import ExponentialDecay, ResidualDriven, SurvivalRule


@dataclass(frozen=True)
class Cholesky(Method):
    """The exact likelihood by a Cholesky factorisation: O(n^3) time, O(n^2) memory.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> gp = rtgp.GPRegressor(method=rtgp.Cholesky()).fit(X, np.sin(6 * X[:, 0]))
    >>> gp.log_marginal_likelihood_error_
    0.0
    """

    exact: ClassVar[bool] = True
    has_information: ClassVar[bool] = True
    several_outputs: ClassVar[bool] = True

    _settings: CholeskySettings | None = field(default=None, repr=False)

    @property
    def default_optimizer(self) -> OptimizerChoice:
        return OptimizerChoice("lbfgs", "gradients are exact")

    def make_objective(self, frozen: bool = False) -> Objective:
        return CholeskyObjective(self._settings or CholeskySettings())

    def memory_need(self, n: int) -> int:
        return _two_matrices(n)

    def _remedy(self, n: int) -> str:
        return (
            f"Cholesky keeps two matrices of {n:,} x {n:,} numbers, {self.memory_need(n) / 2**30:.1f} GiB. Take "
            "method='rr-cg', which aims at the same optimum in memory that grows as n"
        )


class _Krylov(Method):
    """Conjugate gradients on all points: what CG and RRCG share."""

    has_information: ClassVar[bool] = True
    iterative: ClassVar[bool] = True
    spreads: ClassVar[bool] = True
    several_outputs: ClassVar[bool] = True

    probes: int
    preconditioner: PreconditionerSettings | None
    probe_kind: ProbeKind
    refresh: int | None
    warm_start: bool
    tolerance: float | None
    operator: str
    control_variate: bool
    _settings: EstimateSettings | None

    @property
    def default_optimizer(self) -> OptimizerChoice:
        return OptimizerChoice(
            "average-information", "gradients are noisy, and the average-information matrix is known"
        )

    @property
    def spread_operator(self) -> str:
        return self.operator if is_sharded(self.operator) else "auto"

    @property
    def columns(self) -> int:
        return 2 + self.probes

    @property
    def _automatic(self) -> bool:
        return False

    def with_probes_at_most(self, count: int) -> Self:
        return replace(self, probes=min(self.probes, count))  # type: ignore[type-var]

    def _remedy(self, n: int) -> str:
        return (
            "Take operator='tiled', which never stores the kernel matrix, as in "
            f"rtgp.{type(self).__name__}(operator='tiled'); a smaller preconditioner, fewer probes and dtype='float32' "
            "need less too"
        )

    def _check(self) -> None:
        check_positive_integers(self, "probes", optional=False)
        if self.refresh is not None:
            check_positive_integers(self, "refresh", optional=False)
        check_probe_kind(self.probe_kind)
        kinds = (PivotedCholesky, Neighbours, LowRankAndNeighbours, Automatic)
        if self.preconditioner is not None and not isinstance(self.preconditioner, kinds):
            raise SettingError(
                f"The 'preconditioner' parameter of {type(self).__name__} must be a PivotedCholesky, Neighbours, "
                f"LowRankAndNeighbours, Automatic or None. Got {self.preconditioner!r} instead."
            )
        for name in ("warm_start", "control_variate"):
            check_one_of(self, name, (True, False))
        tolerance = self.tolerance
        if tolerance is not None and not (isinstance(tolerance, (int, float)) and 0.0 < tolerance < 1.0):
            raise SettingError(
                f"The 'tolerance' parameter of {type(self).__name__} must be None or between 0 and 1. "
                f"Got {tolerance!r} instead."
            )

    def _objective(self, name: str, truncation: Truncation, frozen: bool) -> KrylovObjective:
        settings = KrylovSettings(
            name=name,
            truncation=truncation,
            probes=self.probes,
            probe_kind=self.probe_kind,
            preconditioner=self.preconditioner,
            refresh=self.refresh,
            warm_start=self.warm_start,
            tolerance=self.tolerance,
            operator=self.operator,
            control_variate=self.control_variate,
            automatic=self._automatic,
            internal=self._settings or EstimateSettings(),
        )
        return KrylovObjective(settings, frozen)


@dataclass(frozen=True)
class CG(_Krylov):
    """Plain conjugate gradients, truncated after a fixed number of iterations: cheap, and biased towards underfitting.

    Theorem 1 of the paper gives the bias. `RRCG` has the same price and no bias.

    Parameters
    ----------
    iterations : int
        The length of the run.
    probes : int
        The number of random vectors that estimate the trace.
    preconditioner : PivotedCholesky, Neighbours, LowRankAndNeighbours, Automatic or None
        By default a greedy pivoted Cholesky factorisation of rank 5. None: none.
    probe_kind : {"rademacher", "gaussian", "preconditioner"}
        How probes are drawn: random signs, normal numbers, or with the preconditioner's covariance.
    refresh : int or None
        Calls after which the preconditioner is made again. None: when the iterations it would save are worth it.
    warm_start : bool
        Whether a run begins at the solution of the run before.
    tolerance : float, optional
        Error ratio at which a column has converged. By default 1e-4 in float32 and 1e-8 in float64.
    operator : str
        How the kernel matrix is multiplied, as in `rtgp.operators.make`.
    control_variate : bool
        Whether the preconditioner's own derivative reduces the noise. It needs probe_kind="preconditioner".

    Examples
    --------
    >>> import rtgp
    >>> rtgp.CG(iterations=50, probes=5).iterations
    50
    >>> rtgp.CG(probes=0)
    Traceback (most recent call last):
        ...
    rtgp.errors.SettingError: The 'probes' parameter of CG must be a positive integer. Got 0 instead.
    """

    biased_as: ClassVar[str] = "plain CG"

    iterations: int = 100
    probes: int = 10
    preconditioner: PreconditionerSettings | None = field(default_factory=lambda: PivotedCholesky(5, "greedy"))
    probe_kind: ProbeKind = "rademacher"
    refresh: int | None = 1
    warm_start: bool = False
    tolerance: float | None = None
    operator: str = "auto"
    control_variate: bool = False
    _settings: EstimateSettings | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_positive_integers(self, "iterations", optional=False)
        self._check()

    def make_objective(self, frozen: bool = False) -> Objective:
        return self._objective("cg", Truncation.plain(self.iterations), frozen)

    def caveat(self, last: EstimateStats | None) -> str:
        return "plain CG is biased, so the loss and the optimum are off by an unknown amount"


@dataclass(frozen=True)
class RRCG(_Krylov):
    """Conjugate gradients truncated by Russian roulette: the optimum of the exact method, at the price of CG.

    The gradient is unbiased. The defaults are the best automatic setting that is known; `RRCG.paper()` is the paper's.

    Parameters
    ----------
    truncation : SurvivalRule
        A rule from `rtgp.truncation`. The default follows the residual of the run itself.
    probes : int
        The number of random vectors that estimate the trace.
    preconditioner : PivotedCholesky, Neighbours, LowRankAndNeighbours, Automatic or None
        By default the kind and the size that make the cheapest step. None: none.
    probe_kind : {"preconditioner", "rademacher", "gaussian"}
        How probes are drawn: with the preconditioner's covariance, as random signs, or as normal numbers.
    coupling : {"max", "independent"}
        "max": the rule gives the length of the run, J_z = max(J_1, J_2), and the two y-solves share it. "independent":
        three truncations, each by the rule, as in the paper.
    refresh : int or None
        Calls after which the preconditioner is made again. None: when the iterations it would save are worth it.
    warm_start : bool
        Whether the y-solve begins at the solution of the call before. The roulette then runs on the correction, so that
        the estimate stays unbiased.
    tolerance : float, optional
        Error ratio at which a column has converged. By default 1e-4 in float32 and 1e-8 in float64.
    operator : str
        How the kernel matrix is multiplied, as in `rtgp.operators.make`. "sharded" spreads it over ranks.
    control_variate : bool
        Whether the preconditioner's own derivative reduces the noise. It needs probe_kind="preconditioner".

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> random = np.random.default_rng(0)
    >>> X = random.uniform(size=(200, 2))
    >>> y = np.sin(6 * X[:, 0]) + 0.3 * random.normal(size=200)
    >>> gp = rtgp.GPRegressor(method=rtgp.RRCG(probes=5), random_state=0).fit(X, y)
    >>> gp.log_marginal_likelihood_error_ < 2.0
    True
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
    _settings: EstimateSettings | None = field(default=None, repr=False)

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
        self._check()

    @classmethod
    def paper(cls, **changes: Any) -> RRCG:
        """The setting of Potapczynski et al. (2021): E[J] = 100, rank-5 preconditioner, no warm start.

        Parameters
        ----------
        **changes
            Settings that differ from those of the paper.

        Returns
        -------
        RRCG
            The settings.

        Examples
        --------
        >>> import rtgp
        >>> rtgp.RRCG.paper(probes=20).truncation
        ExponentialDecay(rate=0.05, minimum=80, maximum=None)
        """
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

    @property
    def replaceable(self) -> bool:
        return isinstance(self.truncation, ResidualDriven)

    @property
    def _automatic(self) -> bool:
        """Whether what the estimate scatters by is left to us: on a few dozen points there is no need for scatter."""
        ours = ("truncation", "probes", "preconditioner", "probe_kind")
        return all(getattr(self, name) == getattr(_DEFAULT, name) for name in ours)

    def make_objective(self, frozen: bool = False) -> Objective:
        plan = Truncation.coupled if self.coupling == "max" else Truncation.independent
        return self._objective("rr-cg", plan(self.truncation), frozen)


_DEFAULT = RRCG()


@dataclass(frozen=True)
class RFF(Method):
    """Random Fourier features in place of the kernel: O(n J^2) time, biased towards overfitting.

    Theorem 2 of the paper gives the bias. For RBF and Matern kernels, their sums and products. The features serve
    training alone: predictions are those of the exact Gaussian process.

    Parameters
    ----------
    features : int, optional
        J, the columns of the feature matrix, cosines and sines together: even, at most n. By default 1000, or n if that
        is less (`MarginalLogLikelihood.last.features` tells).
    frequencies : {"random", "orthogonal", "grid"}
        "orthogonal" draws d at a time at right angles, as unbiased for the kernel. "grid" is equispaced, with weights:
        not random, far more accurate, for one or two inputs.
    redraw : bool
        Whether every call draws new frequencies, so that training follows their mean. False keeps those of the first
        call, so that training fits their kernel.

    Examples
    --------
    >>> import numpy as np, rtgp
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> gp = rtgp.GPRegressor(method=rtgp.RFF(features=30, frequencies="grid"), steps=20, random_state=0)
    >>> gp.fit(X, np.sin(6 * X[:, 0])).predict(X[:3]).shape
    (3,)
    """

    biased_as: ClassVar[str] = "RFF"

    features: int | None = None
    frequencies: str = "random"
    redraw: bool = True

    def __post_init__(self) -> None:
        if self.features is not None:
            check_positive_integers(self, "features", optional=False)
            if self.features % 2:
                raise SettingError(
                    "The 'features' parameter of RFF must be even: it counts cosines and sines, which come in pairs. "
                    f"Got {self.features} instead."
                )
        check_one_of(self, "frequencies", FREQUENCIES)
        check_one_of(self, "redraw", (True, False))

    @property
    def fourier(self) -> FourierSettings:
        return FourierSettings(self.features, self.frequencies, self.redraw)

    def make_objective(self, frozen: bool = False) -> Objective:
        return FourierObjective(replace(self.fourier, redraw=self.redraw and not frozen))

    def caveat(self, last: EstimateStats | None) -> str:
        count = 0 if last is None else last.features
        return f"RFF ({count} features) is biased towards overfitting: the optimum is off by an unknown amount"

    def _remedy(self, n: int) -> str:
        return "Take fewer features, as in rtgp.RFF(features=...), or method='rr-cg'"


@dataclass(frozen=True)
class SSRFF(Method):
    """Random Fourier features whose bias is turned into variance, by a single sample over a ladder of feature counts.

    It is unbiased because the last rung of the ladder is the exact kernel; so it costs O(n^3) now and then. The
    variance is large wherever the bias of RFF is: the theory of Fourier features says when to prefer `RRCG()`.

    Parameters
    ----------
    minimum : int, optional
        Columns of features at the base, part of every estimate; at most n/2. By default n/8.
    step : int or "doubling"
        Columns from rung to rung, up to n/2. An odd rung takes one more, for a frequency is two columns.
    probabilities : {"fitted", "paper"}
        "fitted" follows the size of each rung's difference in earlier calls; "paper" is proportional to 1/J.
    scaled : bool
        Whether the gradients of the features are multiplied by their regression coefficient on the exact one in earlier
        calls. It falls from 1 to 0 as training nears the optimum, where they have nothing in common with it.
    frequencies : {"random", "orthogonal"}
        As of `RFF`.

    Examples
    --------
    >>> import rtgp
    >>> rtgp.SSRFF(minimum=64, step="doubling").minimum
    64
    """

    minimum: int | None = None
    step: int | str = "doubling"
    probabilities: str = "fitted"
    scaled: bool = True
    frequencies: str = "random"
    _settings: LadderSettings | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.minimum is not None:
            check_positive_integers(self, "minimum", optional=False)
        if isinstance(self.step, bool) or not (
            self.step == "doubling" or (isinstance(self.step, int) and self.step >= 1)
        ):
            raise SettingError(
                f"The 'step' parameter of SSRFF must be a positive integer or 'doubling'. Got {self.step!r} instead."
            )
        check_one_of(self, "probabilities", ("fitted", "paper"))
        check_one_of(self, "scaled", (True, False))
        check_one_of(self, "frequencies", ("random", "orthogonal"))

    @classmethod
    def paper(cls, **changes: Any) -> SSRFF:
        """The setting of Potapczynski et al. (2021): 500 features, steps of 100, P(J) proportional to 1/J.

        Parameters
        ----------
        **changes
            Settings that differ from those of the paper.

        Returns
        -------
        SSRFF
            The settings.
        """
        return cls(**{"minimum": 500, "step": 100, "probabilities": "paper", "scaled": False, **changes})

    def make_objective(self, frozen: bool = False) -> Objective:
        ladder = self._settings or LadderSettings()
        settings = SingleSampleSettings(
            self.minimum, self.step, self.probabilities, self.scaled, self.frequencies, ladder
        )
        return SingleSampleObjective(settings, frozen)

    @property
    def fourier(self) -> FourierSettings:
        """The defaults of `RFF`. What these cannot do, the first term of the series cannot."""
        return RFF().fourier

    def memory_need(self, n: int) -> int:
        return _two_matrices(n)  # of its last term

    def _remedy(self, n: int) -> str:
        return f"Its last term is as large as Cholesky's, {self.memory_need(n) / 2**30:.1f} GiB: take method='rr-cg'"


def _two_matrices(n: int) -> int:
    """Bytes, in float64."""
    return 2 * 8 * n * n
