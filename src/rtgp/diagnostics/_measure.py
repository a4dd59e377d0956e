"""All gradients that a diagnosis rests on, drawn with common random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._methods import CG, RRCG, Cholesky
from rtgp._preconditioners import PivotedCholesky
from rtgp.diagnostics._draws import Converged, Estimator, Sample, Units
from rtgp.diagnostics._settings import MeasureSettings
from rtgp.diagnostics._subject import Subject


@dataclass(frozen=True)
class Measurement:
    """CG and RR-CG, each with its own probes truncated and converged; the exact gradient where it is to be had."""

    units: Units
    cg: Sample
    cg_converged: Sample
    rr: Sample
    rr_converged: Sample
    exact: Sample | None
    rounding: Tensor  # (p,): converged in the working precision minus converged in float64

    @property
    def bias(self) -> Tensor:
        """(draws, p): of CG, each with its probes' own noise taken off."""
        return self.cg.gradients - self.cg_converged.gradients

    @property
    def truncation(self) -> Tensor:
        """(draws, p): what the roulette adds to RR-CG's gradients."""
        return self.rr.gradients - self.rr_converged.gradients

    @property
    def gradient(self) -> Tensor:
        """(p,): the best there is."""
        return self.rr_converged.gradients.mean(0) if self.exact is None else self.exact.gradients[0]

    @property
    def gradient_covariance(self) -> Tensor:
        """(p, p): of `gradient`; zero where it is exact."""
        covariance = mean_covariance(self.rr_converged.gradients)
        return covariance if self.exact is None else torch.zeros_like(covariance)


def mean_covariance(draws: Tensor) -> Tensor:
    """(p, p): of the mean of draws (m, p)."""
    m, p = draws.shape
    return torch.cov(draws.T).reshape(p, p) / m


def measure(
    subject: Subject, wide: Subject, cg: CG, rr: RRCG, draws: int, seed: int, settings: MeasureSettings
) -> Measurement:
    """Measure the gradients of CG and of RR-CG, and what they are compared with. `wide` is the subject in float64."""
    n, dtype = len(subject.y), subject.X.dtype
    exact = n <= settings.exact_up_to
    seeds = [(seed << 20) + k for k in range(draws)]
    # Probes that do not depend on the preconditioner allow a better one, made once, which ends the series sooner.
    rank = min(n, settings.helper * math.isqrt(2 * n * (2 + cg.probes)))
    helper = None if cg.probe_kind == "preconditioner" else PivotedCholesky(rank)

    def tolerance(dtype: torch.dtype) -> float | None:
        return settings.converged if dtype == torch.float64 else None

    def end_of_cg(where: Subject, seeds: list[int]) -> Sample:
        converged = Converged(cg, tolerance(where.X.dtype), helper)
        return Estimator(where, converged, keep=helper is not None).sample(seeds)

    cg_converged = end_of_cg(subject, seeds)
    rounding = torch.zeros_like(cg_converged.gradients[0])
    if dtype != torch.float64:
        few = seeds[: settings.rounding_draws]
        rounding = (cg_converged.gradients[: len(few)] - end_of_cg(wide, few).gradients).mean(0)
    cholesky = Estimator(wide, Cholesky())
    return Measurement(
        units=cholesky.units,
        cg=Estimator(subject, cg).sample(seeds),
        cg_converged=cg_converged,
        rr=Estimator(subject, rr).sample(seeds),
        rr_converged=Estimator(subject, Converged(rr, tolerance(dtype))).sample(seeds),
        exact=cholesky.sample(seeds[:1]) if exact else None,
        rounding=rounding,
    )
