"""Checks of what methods are given, all worded alike."""

from __future__ import annotations

from typing import Any

from rtgp.errors import SettingError


def check_positive_integers(method: Any, *names: str, optional: bool = True) -> None:
    for name in names:
        value = getattr(method, name)
        if optional and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingError(
                f"The '{name}' parameter of {type(method).__name__} must be a positive integer"
                f"{' or None' if optional else ''}. Got {value!r} instead."
            )


def size_within(method: Any, name: str, default: int, n: int) -> int:
    """The size asked for, which the data must allow; the default as far as they do."""
    asked: int | None = getattr(method, name)
    if asked is None:
        return min(default, n)
    if asked > n:
        raise SettingError(
            f"The '{name}' parameter of {type(method).__name__} must be at most the number of points. Got {asked:,} "
            f"for {n:,} points: ask for fewer, or leave it out ({default:,}, or all where there are fewer)."
        )
    return asked


def check_one_of(method: Any, name: str, choices: tuple[Any, ...]) -> None:
    value = getattr(method, name)
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        words = ", ".join(repr(choice) for choice in choices)
        raise SettingError(
            f"The '{name}' parameter of {type(method).__name__} must be one of {words}. Got {value!r} instead."
        )
