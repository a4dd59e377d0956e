"""Random truncation of a series: estimates of psi = sum_j Delta_j from few terms, without bias.

    weighting = russian_roulette(ExponentialDecay(rate=0.05, minimum=80), draws=2, generator=generator)
    first, second = estimate(series, weighting)

The survival probability is a distribution's, or follows the run (`ResidualDriven`). Nothing here knows what the series
is made of.
"""

from rtgp.truncation._adaptive import ResidualDriven
from rtgp.truncation._distributions import Fixed, TruncationDistribution, Uniform
from rtgp.truncation._exponential import ExponentialDecay, Geometric
from rtgp.truncation._power_law import PowerLaw
from rtgp.truncation._randomness import uniforms
from rtgp.truncation._rules import SurvivalRule, survival_path
from rtgp.truncation._series import RandomAccessSeries, SparseSeries, estimate
from rtgp.truncation._tabulated import Tabulated
from rtgp.truncation._variance import roulette_variance
from rtgp.truncation._weighting import Weighting, coupled_pair, fixed, russian_roulette, single_sample

__all__ = [
    "ExponentialDecay",
    "Fixed",
    "Geometric",
    "PowerLaw",
    "RandomAccessSeries",
    "ResidualDriven",
    "SparseSeries",
    "SurvivalRule",
    "Tabulated",
    "TruncationDistribution",
    "Uniform",
    "Weighting",
    "coupled_pair",
    "estimate",
    "fixed",
    "roulette_variance",
    "russian_roulette",
    "single_sample",
    "survival_path",
    "uniforms",
]
