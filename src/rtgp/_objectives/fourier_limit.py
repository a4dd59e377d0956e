"""How far Fourier features are from the kernel they stand for: the limit of RFF and SS-RFF, in nats and in words.

log|K_J + noise| is too small by about d_eff^2 / J, with d_eff = tr(K (K + noise)^-1) the effective dimension
(docs/theory/fourier.md): a nat of accuracy takes d_eff^2 features, where a Nystrom method takes about d_eff.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FourierLimit:
    """n points, an effective dimension, and what J features make of them.

    Attributes
    ----------
    visible : float
        Nats per point from which the bias of log|K| shows in the hyperparameters. Chosen, not fitted.
    """

    n: int
    effective_dimension: float
    features: int
    visible: float = 0.02

    @property
    def log_det_bias(self) -> float:
        """By how many nats log|K| comes out too small, up to a factor of about three."""
        return self.effective_dimension**2 / self.features

    @property
    def features_for_a_nat(self) -> float:
        return self.effective_dimension**2

    @property
    def large(self) -> bool:
        return self.log_det_bias > self.visible * self.n

    def words(self) -> str:
        """Whether RFF and SS-RFF serve, and what else to use."""
        found = (
            f"effective dimension d_eff about {_round(self.effective_dimension)}: RFF with J = {self.features} "
            f"features makes log|K| too small by about d_eff^2 / J = {_round(self.log_det_bias)} nats "
            f"({self.log_det_bias / self.n:.1g} per point)"
        )
        if not self.large:
            return f"{found}; RFF and SS-RFF will do here"
        return (
            f"{found}, so that RFF overfits and SS-RFF is very noisy; within a nat would take about "
            f"{_round(self.features_for_a_nat)} features. Use method='rr-cg' or 'cholesky'"
        )


def _round(number: float) -> str:
    """Two digits, without an exponent."""
    return f"{float(f'{number:.2g}'):,.0f}" if number >= 10.0 else f"{number:.2g}"
