"""The diagnosis as an object: figures, tables and words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rtgp._markup import pairs, table, text
from rtgp._methods import CG, RRCG
from rtgp._objectives.fourier_limit import FourierLimit
from rtgp.diagnostics._settings import JudgementSettings


@dataclass(frozen=True)
class HyperparameterBias:
    """The gradient of the negative log marginal likelihood by one hyperparameter, and what CG makes of it.

    Gradients are in nats per unit of the logarithm where `logarithmic`, else per unit of the hyperparameter itself. A
    negative bias makes training end at a larger value.

    Attributes
    ----------
    name : str
        The name of the hyperparameter.
    value : float
        The value of the hyperparameter.
    logarithmic : bool
        Whether gradients are by its logarithm.
    gradient : float
        Exact, or the mean of converged runs.
    gradient_error : float
        Its standard error; 0 where it is exact.
    bias, bias_error : float
        The bias of plain CG, truncated minus converged with the same probes, and its standard error.
    detected : bool
        Whether the bias is beyond chance, all hyperparameters taken together.
    shift, shift_error : float
        A first-order prediction of how far CG would move the optimum, NaN where it is not known; and its standard
        error.
    shift_detected : bool
        Whether the shift is beyond chance.
    probe_sd : float
        Standard deviation of one RR-CG gradient, from its probes.
    truncation_sd : float
        The same, from its truncation.
    rr_cg_bias, rr_cg_bias_error : float
        RR-CG minus converged, with the same probes: zero but for chance; and its standard error.
    cg_probe_sd : float
        Standard deviation of one CG gradient.
    rounding : float
        What the working precision adds to the gradient, against float64; 0 in float64.

    Examples
    --------
    >>> import torch, rtgp
    >>> X = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    >>> found = rtgp.diagnose(X, torch.sin(20 * X[:, 0]), method=rtgp.CG(iterations=2), draws=2, dtype="float64")
    >>> "noise" in [one.name for one in found.hyperparameters]
    True
    """

    name: str
    value: float
    logarithmic: bool
    gradient: float
    gradient_error: float
    bias: float
    bias_error: float
    detected: bool
    shift: float
    shift_error: float
    shift_detected: bool
    probe_sd: float
    truncation_sd: float
    rr_cg_bias: float
    rr_cg_bias_error: float
    cg_probe_sd: float
    rounding: float


@dataclass(frozen=True)
class ValueBias:
    """One term of the log marginal likelihood by CG.

    By Theorem 1 of the paper, CG finds `log|K|` too large and the quadratic term too small.

    Attributes
    ----------
    value : float
        Exact or converged.
    bias : float
        CG minus that.
    bias_error : float
        The standard error of the bias.

    Examples
    --------
    >>> from rtgp.diagnostics import ValueBias
    >>> ValueBias(value=-120.0, bias=3.5, bias_error=0.4).bias
    3.5
    """

    value: float
    bias: float
    bias_error: float


@dataclass(frozen=True)
class Cost:
    """What one gradient costs.

    Attributes
    ----------
    iterations : float
        Mean over the draws.
    shortest, longest : int
        The fewest and the most iterations.
    columns : int
        Right-hand sides in the run.
    rank : int
        Rank of the preconditioner.
    probe_kind : str
        How probes were drawn.
    seconds : float
        Median over the draws, preconditioner included.

    Examples
    --------
    >>> from rtgp.diagnostics import Cost
    >>> Cost(20.0, 18, 22, columns=12, rank=50, probe_kind="rademacher", seconds=0.1).products
    240.0
    """

    iterations: float
    shortest: int
    longest: int
    columns: int
    rank: int
    probe_kind: str
    seconds: float

    @property
    def products(self) -> float:
        """Products of the kernel matrix with one vector."""
        return self.iterations * self.columns


@dataclass(frozen=True)
class Diagnosis:
    """What plain CG would do to the hyperparameters of a model, and what RR-CG would do instead.

    Attributes
    ----------
    method : CG
        The method that was measured.
    rr_cg : RRCG
        What it is compared with.
    n, dimension : int
        The number of points and of inputs.
    dtype : str
        In which CG and RR-CG were run.
    origin : str
        Where the hyperparameters come from, in words.
    draws : int
        Gradient estimates of each kind.
    exact : bool
        Whether the reference is Cholesky's.
    hyperparameters : tuple of HyperparameterBias
        One entry for each.
    left_out : tuple of str
        Parameters too large to be looked at entry by entry.
    log_det, quadratic : ValueBias
        The two terms of the likelihood.
    cost_in_nats : float
        Log marginal likelihood lost to CG's bias: a first-order prediction; NaN where it is not known.
    distance_in_nats : float
        Distance of these hyperparameters from the optimum, likewise predicted: 0 at the optimum.
    condition : float
        An upper bound of the condition number.
    rounding : float
        Rounding of the kernel matrix in the working precision, in units of the noise.
    rounding_limit : float
        Up to which it is harmless.
    rounding_in_nats : float
        Log marginal likelihood lost to the working precision, likewise predicted; 0 in float64.
    float32_failure : str
        Why CG or RR-CG could not be run in float32; empty where they could.
    iterations_to_percent : tuple of int or None
        Iterations to 1% error, with CG's preconditioner and with RR-CG's; None: too many.
    iteration_cap : int
        What "too many" is.
    cg_cost, rr_cg_cost : Cost
        What one gradient costs.
    reasons : tuple of (str, str)
        What RR-CG chose, and why.
    verdict : str
        The finding, in words.
    fourier : FourierLimit or None
        What RFF() and SSRFF() would be up against; None where the kernel has no features.
    judgement : JudgementSettings
        What counts as a finding.

    Examples
    --------
    >>> import torch, rtgp
    >>> X = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    >>> found = rtgp.diagnose(X, torch.sin(20 * X[:, 0]), method=rtgp.CG(iterations=2), draws=2, dtype="float64")
    >>> found.to_frame().loc["noise", "detected"] in (True, False)
    True
    """

    method: CG
    rr_cg: RRCG
    n: int
    dimension: int
    dtype: str
    origin: str
    draws: int
    exact: bool
    hyperparameters: tuple[HyperparameterBias, ...]
    left_out: tuple[str, ...]
    log_det: ValueBias
    quadratic: ValueBias
    cost_in_nats: float
    distance_in_nats: float
    condition: float
    rounding: float
    rounding_limit: float
    rounding_in_nats: float
    float32_failure: str
    iterations_to_percent: tuple[int | None, int | None]
    iteration_cap: int
    cg_cost: Cost
    rr_cg_cost: Cost
    reasons: tuple[tuple[str, str], ...]
    verdict: str
    fourier: FourierLimit | None = None
    judgement: JudgementSettings = field(default_factory=JudgementSettings)

    @property
    def name(self) -> str:
        """The measured method in short, such as "CG(100)"."""
        return f"CG({self.method.iterations})"

    @property
    def biased(self) -> bool:
        """Whether CG's bias is beyond chance and large enough to matter."""
        if not any(one.detected for one in self.hyperparameters):
            return False
        if math.isnan(self.cost_in_nats):
            return any(one.detected and abs(one.bias) > 0.1 * one.probe_sd for one in self.hyperparameters)
        return self.cost_in_nats >= self.judgement.material

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
        least = self.judgement.negligible * max(sizes)
        return tuple(one for one, size in zip(self.hyperparameters, sizes, strict=True) if size > least)

    @property
    def rounding_effect(self) -> float:
        """What the working precision adds to a gradient, at most, in standard deviations of one RR-CG gradient."""
        parts = [abs(one.rounding) / one.probe_sd for one in self.influential if one.logarithmic and one.probe_sd > 0]
        return max(parts, default=0.0)

    @property
    def extra_noise(self) -> float:
        """What the truncation adds to the standard deviation of RR-CG's gradient, as a part of it.

        It is the root mean square over positive hyperparameters. The mean's gradient is left out, because it has no
        probes and so no noise to compare with.
        """
        ratios = [
            (one.truncation_sd / one.probe_sd) ** 2 for one in self.influential if one.logarithmic and one.probe_sd > 0
        ]
        return math.sqrt(1.0 + sum(ratios) / len(ratios)) - 1.0 if ratios else 0.0

    def to_frame(self) -> Any:
        """The hyperparameters as a table.

        Returns
        -------
        pandas.DataFrame
            One row for each hyperparameter.
        """
        import pandas as pd

        return pd.DataFrame([asdict(one) for one in self.hyperparameters]).set_index("name")

    def __str__(self) -> str:
        from rtgp.diagnostics._tables import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        """For notebooks: the verdict first."""
        from rtgp.diagnostics import _tables as tables

        title = f"What {self.name} does to each hyperparameter"
        shown = table(tables.HEAD, tables.rows(self), title, tables.note(self))
        return f"<p>{text(self.verdict)}</p>{shown}{pairs(tables.pairs(self))}"
