"""The solves behind paths: nothing but (K + D)^-1 of their right-hand sides, in the coarsest precision that serves.

A path's solve needs neither that of the mean nor the digits of a variance. Where no prediction has been made yet, K is
made in float32 for it if `_precision.py` finds that this serves, in half the memory and time of float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtgp._kernels import KernelForm
from rtgp._precision import decide_after, decide_prediction, felt_of_entries, limits_of
from rtgp._preconditioners.amplification import reach_of
from rtgp._solvers import NoiseUnits
from rtgp.errors import RTGPError
from rtgp.operators import make_from_form
from rtgp.posterior._cache import PredictionCache, Snapshot
from rtgp.posterior._conjugate_gradients import KrylovSolver
from rtgp.posterior._prior import Prior
from rtgp.posterior._settings import PosteriorSettings
from rtgp.posterior._solver import columns_within


class PathSolver:
    """Of a model as it was at `snapshot`. To be made and used within `evaluating(model)`."""

    def __init__(self, model: Any, likelihood: Any, settings: PosteriorSettings) -> None:
        self.snapshot, self._settings = Snapshot(model, likelihood), settings
        self.prior = Prior.read(model, likelihood)
        self._wide: KernelForm | None = None  # to go over to where float32 fails
        form = self.prior.form_in(torch.float32)
        felt = felt_of_entries(form, self.prior.noise, reach_of)
        serves = decide_prediction(limits_of(form, self.prior.noise), felt).dtype == form.dtype
        if self.prior.form.dtype != torch.float64:
            self.prior = self.prior.in_float64(likelihood)
        self._solver = self._made(form if serves else self.prior.form)
        self._wide = self.prior.form if serves else None

    def _made(self, form: KernelForm) -> tuple[NoiseUnits, KrylovSolver]:
        settings, noise = self._settings, self.prior.noise
        internal = settings.internal
        system = NoiseUnits(make_from_form(form, settings.operator, float(noise.min()), internal.memory_on_card), noise)
        generator = torch.Generator().manual_seed(settings.seed)
        return system, KrylovSolver(system, settings.tolerance * internal.paths.looser, generator, internal.solve)

    def solve(self, rhs: Tensor) -> Tensor:
        """(K + D)^-1 rhs, (n, k) float64."""
        system, solver = self._solver
        try:
            return _solved(system, solver, rhs)
        except RTGPError as error:
            if self._wide is None or decide_after(error, system.dtype) is None:
                raise
        form, self._wide = self._wide, None
        del self._solver, system, solver  # its memory, before more is taken
        self._solver = self._made(form)
        return _solved(*self._solver, rhs)


def _solved(system: NoiseUnits, solver: KrylovSolver, rhs: Tensor) -> Tensor:
    scaled = system.scaled(rhs.double()).to(system.dtype)
    pieces = torch.split(scaled, columns_within(system.size), dim=1)
    return system.scaled(torch.cat([solver.solve(piece).x for piece in pieces], dim=1).double())


class CachedPathSolver:
    """By what predictions are made from already."""

    def __init__(self, cache: PredictionCache) -> None:
        self.snapshot, self.prior, self._cache = cache.snapshot, cache.prior, cache

    def solve(self, rhs: Tensor) -> Tensor:
        """(K + D)^-1 rhs, (n, k) float64."""
        return self._cache.solve(rhs).double()
