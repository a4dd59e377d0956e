"""Checks of constructor arguments, all worded alike."""

from __future__ import annotations

import math
import numbers
from typing import NoReturn

from rtgp.errors import SettingError


def reject(owner: str, name: str, expected: str, value: object) -> NoReturn:
    """Raise the error that says which parameter of what was wrong, what was expected and what came."""
    raise SettingError(f"The '{name}' parameter of {owner} must be {expected}. Got {value!r} instead.")


def check_number(owner: str, name: str, value: object, *, above: float = 0.0, below: float = math.inf) -> None:
    """Require a finite real number in the open interval (above, below)."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and above < float(value) < below:
        return  # also excludes NaN, and infinity since the interval is open
    if math.isfinite(below):
        reject(owner, name, f"a number strictly between {above:g} and {below:g}", value)
    reject(owner, name, "a positive finite number" if above == 0 else f"a finite number above {above:g}", value)


def check_integer(owner: str, name: str, value: object, *, least: int = 1) -> None:
    """Require an integer that is at least `least`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        reject(owner, name, f"an integer of at least {least}", value)
