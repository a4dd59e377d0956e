"""How many examples a property is tried on: the same ones in every run, on every machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """`count` of them, derived from the test's name, not from a clock."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=quiet)
