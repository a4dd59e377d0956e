"""The distributions on which the tests of this folder run."""

from __future__ import annotations

from rtgp.truncation import ExponentialDecay, Fixed, Geometric, PowerLaw, Tabulated, TruncationDistribution, Uniform

LENGTH = 40  # of the series in the tests

# Positive at each of 1, ..., LENGTH: good for every estimator.
FULL: list[TruncationDistribution] = [
    ExponentialDecay(0.2),
    ExponentialDecay(0.08, 1, 40),
    ExponentialDecay(0.1, 1.7),
    Geometric(0.15),
    Geometric(0.2, 1, 45),
    Uniform(1, 40),
    Tabulated([0.9**j for j in range(40)]),
    PowerLaw(1.5),
    PowerLaw(1.0, 1, 60),
]

# A positive survival up to LENGTH, but gaps in the pmf: good for roulette only.
GAPPED: list[TruncationDistribution] = [
    ExponentialDecay(0.15, 5),
    ExponentialDecay(0.1, 7.3),
    ExponentialDecay(0.05, 7.3, 50),
    Geometric(0.1, 4),
    Uniform(5, 60),
    Fixed(40),
    Tabulated([1.0] * 10 + [0.5] * 20 + [0.01] * 15),
    PowerLaw(2.5, 3, step=4),
    PowerLaw(4.5, 6),
    PowerLaw(1.0, 2, 63, step=5),
]

ALL = FULL + GAPPED
