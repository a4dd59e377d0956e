"""One batched run of conjugate gradients, and what it says about the log marginal likelihood.

Columns: the residuals of the (warm-started) y-solves, one for each output, the probes, and, where the probes cannot
give it, one more probe for the log-determinant.

In units of the noise (`_solvers/system.py`): K + noise = S^-1 A S^-1. P is the preconditioner, z a probe, e the same
probe in the whitened coordinates of P (z = F e, P = F F^T), and B = F^-1 A F^-T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rtgp._objectives.protocol import Batch
from rtgp._preconditioners import Control, Preconditioner
from rtgp._preconditioners.neighbour_control import NeighbourControl
from rtgp._preconditioners.trial import spread_of
from rtgp._solvers import CGResult, NoiseUnits
from rtgp._solvers.lanczos import log_derivative_vectors
from rtgp._traces import (
    Probes,
    gradient_vectors,
    inverse_quadratic,
    log_det,
    log_det_series,
    quadratic_series,
    trace_vectors,
)
from rtgp.truncation import SurvivalRule, Weighting, coupled_pair, fixed, roulette_variance, russian_roulette


@dataclass(frozen=True)
class Truncation:
    """Where the series end: `start` begins a run; which of its draws the two y-solves and the probes take."""

    start: Callable[[torch.Generator | None], Weighting]
    first: int
    second: int
    probes: int

    @staticmethod
    def plain(iterations: int | None) -> Truncation:
        """Plain CG: the first `iterations` terms, unweighted (None: all of them)."""
        return Truncation(lambda generator: fixed(iterations), 0, 0, 0)

    @staticmethod
    def independent(rule: SurvivalRule) -> Truncation:
        """Russian roulette as in the paper: three truncations, each with the rule's survival."""
        return Truncation(lambda generator: russian_roulette(rule, 3, generator), 0, 1, 2)

    @staticmethod
    def coupled(rule: SurvivalRule) -> Truncation:
        """Russian roulette whose rule gives the length of the whole run, J_z = max(J_1, J_2)."""
        return Truncation(lambda generator: coupled_pair(rule, generator), 0, 1, 2)


@dataclass(frozen=True)
class KrylovRun:
    """A finished run on A = S K S + I; everything in units of the noise."""

    system: NoiseUnits
    preconditioner: Preconditioner
    truncation: Truncation
    probes: Probes
    value_columns: slice  # columns whose probes have covariance P
    target: Tensor  # (n, t): S residual
    start: Tensor  # (n, t): where the y-solves began
    remainder: Tensor  # (n, t): target - A start, the first columns
    result: CGResult
    exact: bool = False  # whether there is a probe for each direction and no series ends early

    @property
    def outputs(self) -> int:
        return self.target.shape[1]

    def y_solves(self) -> tuple[Tensor, Tensor, Tensor]:
        """A^-1 target (n, t): with the first truncation, with the second, and unweighted."""
        first, second, plain = torch.split(self.result.solutions[:, : 3 * self.outputs], self.outputs, dim=1)
        return self.start + first, self.start + second, self.start + plain

    def probe_solves(self) -> Tensor:
        """A^-1 z of every probe, (n, p)."""
        return self.result.solutions[:, 3 * self.outputs :]

    def log_det(self) -> Tensor:
        """log|A|, one estimate for each probe."""
        weights = self.result.weights[:, self.truncation.probes]
        return log_det(self._log_det_series, weights, self.preconditioner.logdet())

    @cached_property
    def _log_det_series(self) -> Tensor:
        return log_det_series(self.result, self.value_columns)

    def quadratic(self) -> Tensor:
        """target^T A^-1 target = x^T target + x^T remainder + remainder^T A^-1 remainder, x the start; the sum over the
        outputs."""
        draws, columns = (self.truncation.first, self.truncation.second), range(self.outputs)
        first, second = (torch.stack([inverse_quadratic(self.result, k, d) for k in columns]).sum() for d in draws)
        known = (self.start * (self.target + self.remainder)).sum(dtype=torch.float64)
        return known.cpu() + 0.5 * (first + second)

    def value_error(self, log_dets: Tensor) -> float:
        """The standard error of the value, (t `log|A|` + target^T A^-1 target) / 2; NaN where there is one probe only.

        It comes from the scatter of what `log_det` found and from the truncations.
        """
        if len(log_dets) == 1:
            return math.nan
        scatter = self.outputs**2 * float(log_dets.var()) / len(log_dets)
        return 0.5 * math.sqrt(scatter + self.truncation_variance())

    def truncation_variance(self) -> float:
        """The variance of t `log|A|` + target^T A^-1 target over the truncations, as if those of the two terms were
        independent.

        For a coupled pair that is an upper bound: what one misses is positive, and what the other misses is negative.
        """
        weights = self.result.weights
        inverse_survival = weights.amax(1)  # of a y-solve: that of a longer run is smaller
        last = weights[:, self.truncation.probes]
        series = torch.stack([quadratic_series(self.result, k) for k in range(self.outputs)]).sum(0)
        quadratic = roulette_variance(series, inverse_survival, last)
        log_det = roulette_variance(self.outputs * self._log_det_series.mean(1), last, last)
        return max(0.0, 0.5 * float(quadratic) + float(log_det))

    def gradient_vectors(self) -> tuple[Tensor, Tensor]:
        """u, v (n, p + t) with E[sum u^T dA v] = dL, so far as the loss L depends on A (Eq. 2)."""
        first, second, _ = self.y_solves()
        return gradient_vectors(trace_vectors(self.probes, self.probe_solves()), first, second)

    def first_curvatures(self) -> Tensor:
        """u^T A u = e^T B e of every probe of covariance P, (p,) on the CPU: the first direction is u itself."""
        result = self.result
        assert result.iterations > 0
        return (result.squares[0] / result.gamma[0])[self.value_columns]

    def spread(self) -> float:
        """The mean of |B e - e|^2 / n over its probes of covariance P."""
        return spread_of(self.result, self.value_columns)

    def controlled(self, control: Control, batch: Batch) -> Tensor:
        """(2,): what the whole control variate takes from the trace term.

        Where M is dA itself, its quadratics are left out; they have gone with the trace term.
        """
        weights, squares = self.trace_weights(), self.first_curvatures()
        if isinstance(control, NeighbourControl):
            return -control.centre(squares, weights, batch.form, batch.noise)
        return control.losses(self.system, self.probes.dual, squares, weights, batch.form, batch.noise)

    def contrasted(self, control: Control, batch: Batch, quadratics: Tensor | None) -> Tensor:
        """(2,): the same for the contrast.

        Where M is dA itself, `quadratics` are those of `contrast_control_vectors`.
        """
        weights = self.contrast_weights()
        squares = self.first_curvatures()[: len(weights)]
        if isinstance(control, NeighbourControl) and quadratics is not None:
            return quadratics - control.centre(squares, weights, batch.form, batch.noise)
        duals = self.probes.dual[:, : len(weights)]
        return control.losses(self.system, duals, squares, weights, batch.form, batch.noise)

    def contrast_control_vectors(self) -> tuple[Tensor, Tensor]:
        weights = self.contrast_weights()
        duals = self.probes.dual[:, : len(weights)]
        return duals * weights, duals

    def trace_weights(self) -> Tensor:
        """w (p,): the trace term of the gradient is sum_p w_p z_p^T C^-1 dA A^-1 z_p."""
        count = self.probes.dual.shape[1]
        return torch.full(
            (count,), 0.5 * self.outputs / count, dtype=self.probes.dual.dtype, device=self.probes.dual.device
        )

    def contrast_weights(self) -> Tensor:
        """w of mean zero, for an even number of probes: the sum has mean zero and the covariance of the trace term."""
        weights, half = self.trace_weights(), self.probes.dual.shape[1] // 2
        weights = weights[: 2 * half] * math.sqrt(len(weights) / (2 * half))
        weights[half:] *= -1.0
        return weights

    def contrast_vectors(self) -> tuple[Tensor, Tensor]:
        """u, v with E[sum u^T dA v] = 0 and the covariance of the gradient.

        The covariance is over probes and truncations of the y-solve, not over those of the probes' own solves.

        Two solves x + a and x + b of independent errors add x^T dA (a + b) to the gradient, up to a^T dA b. Their
        difference gives x^T dA (a - b), of the same covariance. What the whole run has solved stands for x.
        """
        weights = self.contrast_weights()
        count = len(weights)
        first, second, plain = self.y_solves()
        left = torch.cat([self.probes.dual[:, :count] * weights, -0.5 * plain], dim=1)
        return left, torch.cat([self.probe_solves()[:, :count], first - second], dim=1)

    def derivative_of_value_vectors(self) -> tuple[Tensor, Tensor]:
        """u, v with sum u^T dA v = the derivative of the value itself, for fixed probes and preconditioner.

        It is unbiased like `gradient_vectors`, and consistent with the value, which line searches need. It costs as
        many columns as there were iterations.
        """
        result, columns = self.result, range(self.value_columns.start, self.value_columns.stop)
        left, right = [], []
        assert result.basis is not None
        gamma, beta = result.gamma.to(result.basis.device), result.beta.to(result.basis.device)
        for k, column in enumerate(columns):
            u, v = log_derivative_vectors(gamma[:, column], beta[:, column], result.basis[:, :, k])
            left.append(u * (float(result.squares[0, column]) / len(columns)))
            right.append(v)
        first, second, _ = self.y_solves()
        trace = torch.cat(left, dim=1).to(first.dtype), torch.cat(right, dim=1).to(first.dtype)
        return gradient_vectors(trace, first, second)
