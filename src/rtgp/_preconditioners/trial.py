"""How good a preconditioner is, by a few iterations with probes that are thrown away.

A preconditioner that was chosen by the probes that are then used would be biased. These have a generator of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rtgp._preconditioners.protocol import Preconditioner
from rtgp._solvers import CGResult, NoiseUnits, Output, conjugate_gradients
from rtgp.errors import RTGPError
from rtgp.truncation import fixed


@dataclass(frozen=True)
class TrialSettings:
    """How candidates are tried.

    Attributes
    ----------
    iterations, probes : int
        The size of one trial.
    target : float
        Error ratio whose iterations are predicted.
    most : float
        Iterations beyond which a run is not believed to end.
    """

    iterations: int = 5
    probes: int = 4
    target: float = 1e-2
    most: float = 1000.0


@dataclass(frozen=True)
class Trial:
    """What a trial of a preconditioner has found.

    Attributes
    ----------
    ratio : float
        The smallest whitened residual in the Krylov space at the end, over that at the start.
    iterations : float
        The predicted number of iterations to the target.
    spread : float
        The mean of `|B e - e|^2 / n`; 0 for P = A.
    """

    ratio: float
    iterations: float
    spread: float


def tried(
    preconditioner: Preconditioner, system: NoiseUnits, generator: torch.Generator, settings: TrialSettings
) -> Trial:
    """The result of a short run. A preconditioner that fails has a ratio of infinity."""
    n = system.size
    signs = torch.randint(0, 2, (n, settings.probes), generator=generator).to(system.device)
    residual = signs.to(system.dtype).mul_(2.0).sub_(1.0)
    try:
        run = conjugate_gradients(
            system.matmul, residual, fixed(settings.iterations), [Output(0, None)], preconditioner, chunk=1
        )
    except RTGPError:
        return Trial(math.inf, settings.most, math.inf)
    ratio = smallest_residual(run)
    if not math.isfinite(ratio):
        return Trial(math.inf, settings.most, math.inf)
    rate = math.log(max(ratio, 1e-12)) / max(1, run.iterations)
    predicted = settings.most if rate >= 0.0 else min(settings.most, math.log(settings.target) / rate)
    return Trial(ratio, max(1.0, predicted), spread_of(run, slice(0, settings.probes)))


def smallest_residual(run: CGResult) -> float:
    """The norm of the smallest residual in the Krylov space, to that at the start, for all columns together.

    The residuals r_j of conjugate gradients often rise at first, and then rank nothing. The smallest, that of the
    minimum residual method, never rises, and 1 / |s|^2 = sum_j 1 / |r_j|^2 (Weiss 1994).
    """
    squares = run.squares.clamp_min(torch.finfo(torch.float64).tiny)
    return math.sqrt(float((1.0 / squares.reciprocal().sum(0)).sum() / squares[0].sum()))


def spread_of(run: CGResult, columns: slice) -> float:
    """The mean of |B e - e|^2 / n over probes of covariance P, from the first iteration alone: its step is
    e - gamma B e, at right angles to e."""
    if run.iterations == 0:
        return 0.0
    first, after, gamma = run.squares[0, columns], run.squares[1, columns], run.gamma[0, columns]
    if not bool((gamma > 0).all()):
        return math.inf
    return max(0.0, float((((first + after) / gamma.square() - 2.0 * first / gamma + first) / first).mean()))
