"""From a kernel in words to GPyTorch's, with values to begin at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gpytorch import kernels

from rtgp._estimator.kernel_words import Expression, Part, columns_for, parse
from rtgp._estimator.periods import likely_periods
from rtgp.datasets._dataset import Array
from rtgp.errors import SettingError

_NU = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
_CLASSES = {"rbf": kernels.RBFKernel, "rq": kernels.RQKernel, "periodic": kernels.PeriodicKernel,
            "linear": kernels.LinearKernel}  # fmt: skip
_START = math.log(2.0)  # where all of GPyTorch's parameters begin, which suits data of unit variance


def kernel_from_words(text: str, names: Sequence[str], x: Array, y: Array, units: Array) -> kernels.Kernel:
    """The kernel of a text for inputs x (n, d) called `names`, with a scale for each summand that has none.

    units: of each column, in which a period in the text is divided to come to those of x. A periodic kernel of one
    column begins at a peak of its periodogram where the text says no period.
    """
    found = _with_periods(parse(text), text, list(names), x, y, units)
    summands = _summands(found)
    build = _Builder(text, list(names), x, float(np.var(y)) / len(summands))
    parts = [build.scaled(one) for one in summands]
    return parts[0] if len(parts) == 1 else kernels.AdditiveKernel(*parts)


def _summands(found: Expression) -> list[Expression]:
    if isinstance(found, Part) or found.sign == "*":
        return [found]
    return [one for part in found.parts for one in _summands(part)]


def _with_periods(found: Expression, text: str, names: list[str], x: Array, y: Array, units: Array) -> Expression:
    """Every periodic kernel of one column with a period in the units of x."""
    places = [tuple(_places(part, text, names)) for part in _leaves(found) if part.word == "periodic"]
    wanted = [part.period is None for part in _leaves(found) if part.word == "periodic"]
    periods: dict[int, Iterator[float]] = {}
    for place in {one[0] for one, open_ in zip(places, wanted, strict=True) if open_ and len(one) == 1}:
        count = sum(open_ and one == (place,) for one, open_ in zip(places, wanted, strict=True))
        periods[place] = iter(likely_periods(x[:, place], y, count))

    def of(one: Expression) -> Expression:
        if not isinstance(one, Part):
            return replace(one, parts=tuple(map(of, one.parts)))
        if one.word != "periodic":
            return one
        columns = _places(one, text, names)
        if one.period is not None:
            if len(columns) != 1:
                raise SettingError(f"The kernel {text!r:.80}: a period belongs to one column. Got {len(columns)}.")
            return replace(one, period=one.period / float(units[columns[0]]))
        return replace(one, period=next(periods[columns[0]])) if len(columns) == 1 else one

    return of(found)


def _leaves(found: Expression) -> Iterator[Part]:
    if isinstance(found, Part):
        yield found
    else:
        for part in found.parts:
            yield from _leaves(part)


def _places(part: Part, text: str, names: list[str]) -> list[int]:
    return list(range(len(names))) if part.columns is None else columns_for(part.columns, names, text)


class _Builder:
    def __init__(self, text: str, names: list[str], x: Array, variance: float) -> None:
        self.text, self.names, self.variance = text, names, variance
        spread = x.std(axis=0)
        self.spread = torch.tensor(np.where(spread > 0, spread, 1.0), dtype=torch.float32)

    def scaled(self, found: Expression) -> kernels.Kernel:
        """With a scale of its own, unless it has one already."""
        made = self.plain(found)
        if any(part.word == "linear" for part in ([found] if isinstance(found, Part) else found.parts)
               if isinstance(part, Part)):  # fmt: skip
            return made
        whole = kernels.ScaleKernel(made)
        with torch.no_grad():
            whole.outputscale = _START * self.variance
        return whole

    def plain(self, found: Expression) -> kernels.Kernel:
        if isinstance(found, Part):
            return self.leaf(found)
        if found.sign == "*":
            return kernels.ProductKernel(*map(self.plain, found.parts))
        return kernels.AdditiveKernel(*map(self.scaled, found.parts))

    def leaf(self, part: Part) -> kernels.Kernel:
        columns = _places(part, self.text, self.names)
        options: dict[str, Any] = {"ard_num_dims": len(columns)}
        if part.columns is not None:
            options["active_dims"] = tuple(columns)
        if part.word in _NU:
            made = kernels.MaternKernel(nu=_NU[part.word], **options)
        else:
            made = _CLASSES[part.word](**options)
        spread = self.spread[columns]
        with torch.no_grad():
            if part.word == "linear":
                made.variance = _START * self.variance / (len(columns) * spread.square()).reshape_as(made.variance)
            elif part.word == "periodic":
                made.lengthscale = torch.ones_like(made.lengthscale)
                made.period_length = spread if part.period is None else part.period
            else:
                made.lengthscale = math.sqrt(len(columns)) * spread
        return made
