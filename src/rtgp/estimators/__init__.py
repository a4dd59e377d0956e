"""Stochastic estimates of traces, log-determinants and quadratic forms."""

from rtgp.estimators.logdet import inverse_quadratic, log_det, log_det_series, quadratic_series
from rtgp.estimators.probes import PROBE_KINDS, ProbeKind, Probes, check_probe_kind, draw_probes
from rtgp.estimators.trace import gradient_vectors, trace_vectors

__all__ = [
    "PROBE_KINDS",
    "ProbeKind",
    "Probes",
    "check_probe_kind",
    "draw_probes",
    "gradient_vectors",
    "inverse_quadratic",
    "log_det",
    "log_det_series",
    "quadratic_series",
    "trace_vectors",
]
