"""Where the period of a periodic kernel begins: at the highest peak of a periodogram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rtgp.datasets._dataset import Array


@dataclass(frozen=True)
class PeriodSettings:
    """How a period is looked for. Chosen, not fitted.

    rows: the first so many, in the order of the column. cycles: the longest period fits so often into the data.
    finer: frequencies for each that can be told apart. most: frequencies.
    """

    rows: int = 3000
    cycles: float = 1.5
    finer: float = 5.0
    most: int = 10_000


DEFAULT = PeriodSettings()


def likely_periods(t: Array, y: Array, count: int, settings: PeriodSettings = DEFAULT) -> list[float]:
    """The periods of the `count` highest peaks of the periodogram of Lomb (1976) and Scargle (1982), which takes times
    at any distances; what one explains is taken off before the next is looked for."""
    from scipy.signal import lombscargle

    order = np.argsort(t, kind="stable")[: settings.rows]
    t, y = t[order], y[order]
    span, gaps = t[-1] - t[0], np.diff(np.unique(t))
    if span <= 0.0 or len(gaps) < 3:
        return [float(span) or 1.0] * count
    low, high = settings.cycles / span, 0.5 / float(np.median(gaps))
    high = max(high, 2.0 * low)
    number = int(min(settings.most, max(16.0, settings.finer * span * (high - low))))
    frequencies = np.linspace(low, high, number)
    left = y - np.polyval(np.polyfit(t - t.mean(), y, 1), t - t.mean())
    found = []
    for _ in range(count):
        power = lombscargle(t, left, 2.0 * np.pi * frequencies)
        best = float(frequencies[int(np.argmax(power))])
        found.append(1.0 / best)
        waves = np.column_stack([f(2.0 * np.pi * k * best * t) for k in (1, 2, 3) for f in (np.sin, np.cos)])
        left = left - waves @ np.linalg.lstsq(waves, left, rcond=None)[0]
    return found
