"""RFF: the negative log marginal likelihood with the kernel of J Fourier features in place of the kernel (Sec. 2.2).

Its expectation over the frequencies is biased towards overfitting: the quadratic term is too large, the log-determinant
too small (Theorem 2), by an amount that falls like d_eff^2 / J (docs/theory/fourier.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rtgp._kernels.frequency_grid import grid_spectrum
from rtgp._kernels.spectral import Component, Spectrum, components_of, draw_spectrum
from rtgp._objectives.fourier_algebra import FourierSystem, Loss, operations
from rtgp._objectives.protocol import Batch, EstimateRequest, EstimateStats, LossEstimate
from rtgp._precision import in_float64
from rtgp._state import State, saved_count
from rtgp._traces import SEEDS, draw_seed
from rtgp.errors import RTGPError, SettingError

FREQUENCIES = ("random", "orthogonal", "grid")
DEFAULT_FEATURES = 1000  # the paper's


@dataclass(frozen=True)
class FourierSettings:
    """Everything that defines an RFF objective."""

    features: int | None  # columns, cosines and sines together; None: 1000, or as many as there are points
    frequencies: str
    redraw: bool  # new frequencies in every call; if not, those of the first are kept


class FourierObjective:
    """Without `redraw` it keeps the seed of its frequencies, and nothing else between calls."""

    def __init__(self, settings: FourierSettings) -> None:
        self.settings = settings
        self._seed: int | None = None

    def reset(self) -> None:
        self._seed = None

    def overcome(self, error: RTGPError) -> str | None:
        return None

    def state_dict(self) -> State:
        return {} if self._seed is None else {"seed": self._seed}

    def load_state_dict(self, state: State) -> None:
        self._seed = saved_count(state, "seed", most=SEEDS - 1) if "seed" in state else None

    def __call__(
        self, batch: Batch, generator: torch.Generator | None = None, request: EstimateRequest | None = None
    ) -> LossEstimate:
        batch = replace(batch, form=in_float64(batch.form))
        components = components_of(batch.form)
        columns = feature_columns(self.settings.features, batch.form.size, len(components))
        spectrum = make_spectrum(components, columns // 2, self.settings.frequencies, self._source(generator))
        (loss,) = FourierSystem(batch, spectrum, columns).losses([columns], batch.requires_grad)
        cost = operations(batch.form.size, [columns])
        return estimate_of(loss, batch, "rff", columns, loss.effective_dimension, cost)

    def _source(self, generator: torch.Generator | None) -> torch.Generator | None:
        if self.settings.redraw or self.settings.frequencies == "grid":
            return generator
        if self._seed is None:
            self._seed = draw_seed(generator)
        return torch.Generator().manual_seed(self._seed)


def make_spectrum(
    components: tuple[Component, ...], count: int, frequencies: str, generator: torch.Generator | None
) -> Spectrum:
    """`count` frequencies of the wanted kind."""
    if frequencies == "grid":
        return grid_spectrum(components, count)
    return draw_spectrum(components, count, generator, frequencies == "orthogonal")


def feature_columns(features: int | None, n: int, components: int) -> int:
    """The number of columns, even: as asked for, or the default, clamped to the data."""
    least = 2 * components
    if features is None:
        return max(least, min(DEFAULT_FEATURES, n - n % 2))
    if features > max(n, least):
        raise SettingError(
            f"The 'features' of RFF must not exceed the number of points, {n}: more cost more than the exact method. "
            f"Got {features}. Use fewer, features=None (which adapts to the data), or method='cholesky'."
        )
    if features < least:
        raise SettingError(
            f"The 'features' of RFF must be at least two for each of the {components} terms of the kernel. "
            f"Got {features}: use {least} or more."
        )
    return features


def estimate_of(
    loss: Loss, batch: Batch, method: str, features: int, effective_dimension: float, cost: float, truncation: int = 0
) -> LossEstimate:
    """The estimate with its statistics."""
    n = batch.form.size
    limits = batch.limits()
    stats = EstimateStats(
        method=method,
        dtype=batch.form.dtype,
        log_det=loss.log_det,
        quadratic=loss.quadratic,
        condition=limits.condition,
        rounding=limits.rounding,
        truncations=(truncation,) if truncation else (),
        features=features,
        effective_dimension=effective_dimension,
        operations=cost,
    )
    return LossEstimate(loss.surrogate, loss.value(n), stats)
