"""The diagnosis as an object: figures, tables and words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rtgp.methods import CG, RRCG
from rtgp.objectives.fourier_limit import FourierLimit

MATERIAL_COST = 0.1  # nats of log marginal likelihood: less is nothing anybody could see
NEGLIGIBLE = 1e-6  # of the largest gradient: what is below it is rounding


@dataclass(frozen=True)
class HyperparameterBias:
    """The gradient of the negative log marginal likelihood with respect to one hyperparameter, and what CG makes of it.

    Gradients are in nats per unit of the logarithm where `logarithmic`, else per unit of the hyperparameter itself.
    A negative bias makes training end at a larger value.
    """

    name: str
    value: float
    logarithmic: bool
    gradient: float  # exact, or the mean of converged runs
    gradient_error: float  # 0: exact
    bias: float  # of plain CG: truncated minus converged, same probes
    bias_error: float
    detected: bool  # whether the bias is beyond chance, all hyperparameters taken together
    shift: float  # first-order prediction of how far CG would move the optimum; NaN: not known
    shift_error: float
    shift_detected: bool
    probe_sd: float  # of one RR-CG gradient, from its probes
    truncation_sd: float  # of one RR-CG gradient, from its truncation
    rr_cg_bias: float  # RR-CG minus converged, same probes: zero but for chance
    rr_cg_bias_error: float
    cg_probe_sd: float  # of one CG gradient
    rounding: float  # what the working precision adds to the gradient, against float64 (0 in float64)


@dataclass(frozen=True)
class ValueBias:
    """One term of the log marginal likelihood by CG. Theorem 1: log|K| too large, the quadratic term too small."""

    value: float  # exact or converged
    bias: float
    bias_error: float


@dataclass(frozen=True)
class Cost:
    """What one gradient costs."""

    iterations: float  # mean over the draws
    shortest: int
    longest: int
    columns: int  # right-hand sides in the run
    rank: int  # of the preconditioner
    probe_kind: str
    seconds: float  # median over the draws, preconditioner included

    @property
    def products(self) -> float:
        """Products of the kernel matrix with one vector."""
        return self.iterations * self.columns


@dataclass(frozen=True)
class Diagnosis:
    """What plain CG would do to the hyperparameters of a model, and what RR-CG would do instead."""

    method: CG
    rr_cg: RRCG
    n: int
    dimension: int
    dtype: str  # in which CG and RR-CG were run
    origin: str  # of the hyperparameters
    draws: int
    exact: bool  # whether the reference is Cholesky's
    hyperparameters: tuple[HyperparameterBias, ...]
    left_out: tuple[str, ...]  # parameters too large to be looked at entry by entry
    log_det: ValueBias
    quadratic: ValueBias
    cost_in_nats: float  # of log marginal likelihood lost to CG's bias: a first-order prediction; NaN: not known
    distance_in_nats: float  # of these hyperparameters from the optimum, likewise predicted: 0 at the optimum
    condition: float  # upper bound of the condition number
    rounding: float  # of the kernel matrix in the working precision, in units of the noise
    rounding_limit: float
    rounding_in_nats: float  # log marginal likelihood lost to the working precision, likewise predicted; 0 in float64
    float32_failure: str  # why CG or RR-CG could not be run in float32; "": they could
    iterations_to_percent: tuple[int | None, int | None]  # to 1% error: CG's preconditioner, RR-CG's; None: too many
    iteration_cap: int  # what "too many" is
    cg_cost: Cost
    rr_cg_cost: Cost
    reasons: tuple[tuple[str, str], ...]  # what RR-CG chose, and why
    verdict: str
    fourier: FourierLimit | None = None  # what RFF() and SSRFF() would be up against; None: not for this kernel

    @property
    def name(self) -> str:
        return f"CG({self.method.iterations})"

    @property
    def biased(self) -> bool:
        """Whether CG's bias is beyond chance and large enough to matter."""
        if not any(one.detected for one in self.hyperparameters):
            return False
        if math.isnan(self.cost_in_nats):
            return any(one.detected and abs(one.bias) > 0.1 * one.probe_sd for one in self.hyperparameters)
        return self.cost_in_nats >= MATERIAL_COST

    @property
    def converged(self) -> bool:
        """Whether CG's series ended by themselves, at the working precision, in every draw."""
        return self.cg_cost.longest < self.method.iterations

    @property
    def cost_ratio(self) -> float:
        """Seconds of one RR-CG gradient over those of one CG gradient, from the same run."""
        return self.rr_cg_cost.seconds / self.cg_cost.seconds

    @property
    def influential(self) -> tuple[HyperparameterBias, ...]:
        """The hyperparameters that the likelihood depends on at all; an idle input's lengthscale is not among them."""
        sizes = [max(abs(one.gradient), abs(one.bias), one.probe_sd) for one in self.hyperparameters]
        return tuple(
            one for one, size in zip(self.hyperparameters, sizes, strict=True) if size > NEGLIGIBLE * max(sizes)
        )

    @property
    def rounding_effect(self) -> float:
        """What the working precision adds to a gradient, at most, in standard deviations of one RR-CG gradient."""
        parts = [abs(one.rounding) / one.probe_sd for one in self.influential if one.logarithmic and one.probe_sd > 0]
        return max(parts, default=0.0)

    @property
    def extra_noise(self) -> float:
        """What the truncation adds to the sd of RR-CG's gradient (rms over positive hyperparameters), as a part of it.

        The mean's gradient is left out: it has no probes, and so no noise to compare with.
        """
        ratios = [
            (one.truncation_sd / one.probe_sd) ** 2 for one in self.influential if one.logarithmic and one.probe_sd > 0
        ]
        return math.sqrt(1.0 + sum(ratios) / len(ratios)) - 1.0 if ratios else 0.0

    def to_frame(self) -> Any:
        """One row for each hyperparameter, as a pandas.DataFrame."""
        import pandas as pd

        return pd.DataFrame([asdict(one) for one in self.hyperparameters]).set_index("name")

    def __str__(self) -> str:
        from rtgp.diagnostics.tables import as_text

        return as_text(self)
