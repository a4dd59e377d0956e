"""Every number that a diagnosis decides by, in one frozen object. All were chosen, none was fitted."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtgp._objectives.fourier_limit import FourierLimit


@dataclass(frozen=True)
class SubjectSettings:
    """How hyperparameters are fitted where bare data are given.

    Attributes
    ----------
    rows : int
        The fit is by Cholesky, on at most this many rows.
    steps : int
        The largest number of steps of that fit.
    tolerance : float
        Relative decrease of a step at which it ends.
    noise_floor : float
        Lower bound of the noise, as a part of the target's variance.
    """

    rows: int = 1000
    steps: int = 60
    tolerance: float = 1e-6
    noise_floor: float = 1e-6


@dataclass(frozen=True)
class MeasureSettings:
    """How gradients are measured.

    Attributes
    ----------
    exact_up_to : int
        Points up to which Cholesky is the reference.
    draws : tuple[tuple[int, int], ...]
        Pairs (largest number of points, number of draws), in rising order.
    fewest_draws : int
        The number of draws for more points.
    rounding_draws : int
        Draws of the same probes in float32 and in float64, whose difference hardly varies.
    converged : float
        Error ratio of a converged run in float64. In float32 it is the working precision.
    helper : int
        Rank of the preconditioner of converged runs, in units of the rank that costs one product. It is made once for
        all draws.
    information : float
        Tolerance of the solves for the information matrix. A first-order prediction needs no more.
    cap : int
        How long to look for the end of CG's series, in units of CG's iterations.
    value : float
        Error ratio at which a column of the value's run ends. The error of the value goes with its square.
    percent : float
        Error ratio whose iterations are reported.
    """

    exact_up_to: int = 3000
    draws: tuple[tuple[int, int], ...] = ((3000, 16), (20_000, 8))
    fewest_draws: int = 4
    rounding_draws: int = 2
    converged: float = 1e-6
    helper: int = 4
    information: float = 1e-4
    cap: int = 5
    value: float = 1e-3
    percent: float = 1e-2

    def draws_for(self, n: int) -> int:
        return next((count for limit, count in self.draws if n <= limit), self.fewest_draws)


@dataclass(frozen=True)
class FourierSettings:
    """How the effective dimension is estimated.

    Attributes
    ----------
    probes : int
        Number of random vectors. One sees the dimension up to a standard deviation of sqrt(2 d_eff), so a few suffice.
    tolerance : float
        Error ratio at which a column ends. The error of the quadratic form goes with its square.
    most_iterations : int
        The longest run.
    visible : float
        Bias of `log|K|` in nats per point that shows; see `FourierLimit`.
    """

    probes: int = 4
    tolerance: float = 3e-2
    most_iterations: int = 1000
    visible: float = FourierLimit.visible


@dataclass(frozen=True)
class JudgementSettings:
    """What a finding is.

    Attributes
    ----------
    false_alarm : float
        Probability that any unbiased hyperparameter is called biased.
    material : float
        Nats of log marginal likelihood. A smaller loss has no visible effect.
    negligible : float
        Part of the largest gradient below which there is rounding alone.
    near : float
        Nats per point from the optimum within which the figures are those of the optimum.
    visible : float
        Shift of a logarithm that is reported.
    """

    false_alarm: float = 0.01
    material: float = 0.1
    negligible: float = 1e-6
    near: float = 0.01
    visible: float = 0.01


@dataclass(frozen=True)
class DiagnosisSettings:
    """Every number that a diagnosis decides by.

    Attributes
    ----------
    subject : SubjectSettings
        The fit of bare data.
    measure : MeasureSettings
        How gradients and values are measured.
    fourier : FourierSettings
        How the effective dimension is estimated.
    judgement : JudgementSettings
        What counts as a finding.
    """

    subject: SubjectSettings = field(default_factory=SubjectSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    fourier: FourierSettings = field(default_factory=FourierSettings)
    judgement: JudgementSettings = field(default_factory=JudgementSettings)


DEFAULT = DiagnosisSettings()
