"""Reading back what was saved between two steps: every number has the kind, shape and range it was saved with.

A checksum tells that a file is what was written, not that what was written makes sense. Each function takes the saved
mapping and the name of an entry, and raises a ValueError that names the entry, what was expected and what came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor | float | int | bool]  # what an objective, or a part of one, holds between two steps
Shape = tuple[int | None, ...]  # None: any length
_ANYWHERE = (-math.inf, math.inf)
_MOST = 2**62


def saved_tensor(
    state: Mapping[str, Any],
    name: str,
    shape: Shape,
    dtype: torch.dtype | tuple[torch.dtype, ...] = torch.float64,
    between: tuple[float, float] = _ANYWHERE,
) -> Tensor:
    """A tensor of this shape and type; every entry is finite and between the two bounds, which are allowed."""
    found, kinds = _entry(state, name), dtype if isinstance(dtype, tuple) else (dtype,)
    wanted = f"a tensor of shape {_words(shape)} and type {' or '.join(map(str, kinds))}"
    if not isinstance(found, Tensor):
        raise ValueError(f"'{name}' must be {wanted}. Got {type(found).__name__}.")
    fits = len(found.shape) == len(shape) and all(
        length is None or length == given for length, given in zip(shape, found.shape, strict=True)
    )
    if not fits or found.dtype not in kinds:
        raise ValueError(f"'{name}' must be {wanted}. Got shape {tuple(found.shape)} and type {found.dtype}.")
    if found.dtype.is_floating_point and not bool(torch.isfinite(found).all()):
        raise ValueError(f"'{name}' must be finite. Got NaN or infinity.")
    if found.numel() and not (between[0] <= float(found.min()) and float(found.max()) <= between[1]):
        got = f"{float(found.min()):g} to {float(found.max()):g}"
        raise ValueError(f"'{name}' must lie between {between[0]:g} and {between[1]:g}. Got {got}.")
    return found


def saved_scalar(state: Mapping[str, Any], name: str, between: tuple[float, float] = _ANYWHERE) -> float:
    """A number that was saved as a float64 tensor of shape ()."""
    return float(saved_tensor(state, name, (), torch.float64, between))


def saved_number(state: Mapping[str, Any], name: str, between: tuple[float, float] = _ANYWHERE) -> float:
    """A finite number between the two bounds, which are allowed."""
    found = _entry(state, name)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"'{name}' must be a number. Got {type(found).__name__}.")
    if not (math.isfinite(found) and between[0] <= found <= between[1]):
        raise ValueError(f"'{name}' must be finite and between {between[0]:g} and {between[1]:g}. Got {found}.")
    return float(found)


def saved_count(state: Mapping[str, Any], name: str, least: int = 0, most: int = _MOST) -> int:
    """A whole number from `least` to `most`."""
    found = _entry(state, name)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"'{name}' must be a whole number. Got {type(found).__name__}.")
    if not least <= found <= most:
        raise ValueError(f"'{name}' must be a whole number from {least} to {most}. Got {found}.")
    return found


def saved_flag(state: Mapping[str, Any], name: str) -> bool:
    """True or False."""
    found = _entry(state, name)
    if not isinstance(found, bool):
        raise ValueError(f"'{name}' must be true or false. Got {type(found).__name__}.")
    return found


def _entry(state: Mapping[str, Any], name: str) -> Any:
    if name not in state:
        raise ValueError(f"'{name}' is missing.")
    return state[name]


def _words(shape: Shape) -> str:
    return f"({', '.join('any' if length is None else str(length) for length in shape)})"
