"""Stochastic estimates of traces, log-determinants and quadratic forms."""

from rtgp._traces.logdet import (
    gradient_vectors,
    inverse_quadratic,
    log_det,
    log_det_series,
    quadratic_series,
    trace_vectors,
)
from rtgp._traces.probes import (
    PROBE_KINDS,
    SEEDS,
    ProbeKind,
    Probes,
    check_probe_kind,
    draw_probes,
    draw_seed,
    every_direction,
)

__all__ = [
    "PROBE_KINDS",
    "SEEDS",
    "ProbeKind",
    "Probes",
    "check_probe_kind",
    "draw_probes",
    "draw_seed",
    "every_direction",
    "gradient_vectors",
    "inverse_quadratic",
    "log_det",
    "log_det_series",
    "quadratic_series",
    "trace_vectors",
]
