"""Where the hyperparameters of an estimator begin, and between which bounds they stay: what a user may say of both.

All in working units, those of `hyperparameters_`: in standard deviations of each input and in the variance of the
target where these are standardised, in their own units where they are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel
from torch import Tensor

from rtgp.errors import SettingError

FIXED = "fixed"
NAMES = (
    "lengthscale", "outputscale", "noise_variance", "lengthscale_bounds", "outputscale_bounds", "noise_bounds"
)  # fmt: skip


@dataclass(frozen=True)
class InsideSettings:
    """How a start is brought between bounds. Chosen, not fitted.

    Attributes
    ----------
    part : float
        Of the way from one to the other, in logarithms, that it stays away from each.
    least : float
        Part of the upper bound that stands for a lower one of zero.
    """

    part: float = 1e-2
    least: float = 1e-6


DEFAULT = InsideSettings()


@dataclass(frozen=True)
class Beginning:
    """What `GPRegressor` was given under these names: None for the default, and "fixed" or (low, high) for bounds.

    Attributes
    ----------
    lengthscale, outputscale, noise_variance : float or array, optional
        Where training begins.
    lengthscale_bounds, outputscale_bounds, noise_bounds : str or tuple, optional
        Between which they stay.
    earlier : mapping of str to Tensor
        Values of the fit before, by the parameters' names, where training goes on from it.
    """

    lengthscale: Any = None
    outputscale: Any = None
    noise_variance: Any = None
    lengthscale_bounds: Any = None
    outputscale_bounds: Any = None
    noise_bounds: Any = None
    earlier: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def bounded(self) -> bool:
        """Whether a kernel by name has other constraints than by default."""
        return any(b is not None and b is not FIXED for b in (self.lengthscale_bounds, self.outputscale_bounds))

    def for_columns(self, kept: Any) -> Beginning:
        """For the columns that are used."""
        pair = self.lengthscale_bounds
        if pair is not None and not isinstance(pair, str):
            pair = tuple(_of_columns(bound, kept) for bound in pair)
        return replace(self, lengthscale=_of_columns(self.lengthscale, kept), lengthscale_bounds=pair)

    def check_noise(self, known: bool) -> None:
        """known: whether `fit` was given variances."""
        if known and (self.noise_variance is not None or self.noise_bounds is not None):
            raise SettingError(
                "The parameters 'noise_variance' and 'noise_bounds', and a WhiteKernel, belong to a noise that is "
                "learned. Got known variances in fit too: leave one of them out."
            )

    def check(self, kernel: Any, columns: int) -> None:
        """Say in words what is wrong, before anything is made."""
        of_kernel = (self.lengthscale, self.outputscale, self.lengthscale_bounds, self.outputscale_bounds)
        if not isinstance(kernel, str) and any(one is not None for one in of_kernel):
            raise SettingError(
                "The parameters 'lengthscale', 'outputscale' and their bounds belong to a kernel by name, such as "
                f"kernel='rbf'. Got a {type(kernel).__name__}: give the kernel itself its values and its bounds."
            )
        for name, bounds_name, most in (
            ("lengthscale", "lengthscale_bounds", columns),
            ("outputscale", "outputscale_bounds", 1),
            ("noise_variance", "noise_bounds", 1),
        ):
            value = _checked_value(name, getattr(self, name), most)
            _check_bounds(bounds_name, getattr(self, bounds_name), name, value, most)

    def apply(self, kernel: Kernel, by_name: bool, likelihood: Any, learned: bool) -> None:
        """Give a new model its starting values and bounds. learned: whether its noise is."""
        if by_name:
            scaled: Any = kernel
            _set(scaled.base_kernel, "lengthscale", self.lengthscale, self.lengthscale_bounds)
            _set(scaled, "outputscale", self.outputscale, self.outputscale_bounds)
        if learned:  # its constraint is there already
            _set(likelihood, "noise", self.noise_variance, self.noise_bounds, constrained=True)

    def noise_inside(self, value: float, settings: InsideSettings = DEFAULT) -> float:
        """A default start, brought between the bounds."""
        if self.noise_bounds is None or isinstance(self.noise_bounds, str):
            return value
        start = torch.tensor(value, dtype=torch.float64)
        return float(_inside(start, *_tensors(self.noise_bounds, start), settings))

    def take_up(self, model: torch.nn.Module) -> None:
        """Go on from an earlier fit, as far as the model has parameters of the same names and sizes that are trained
        and may have those values."""
        with torch.no_grad():
            for name, parameter, constraint in _parameters(model):
                before = self.earlier.get(name)
                if before is None or before.shape != parameter.shape or not parameter.requires_grad:
                    continue
                value = before.to(parameter)
                if constraint is None:
                    parameter.copy_(value)
                elif constraint.check(value):
                    raw = constraint.inverse_transform(value)
                    if bool(torch.isfinite(raw).all()):
                        parameter.copy_(raw)


def values_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model as `take_up` takes them: in constrained units, float64 on the CPU."""
    return {
        name: (p if constraint is None else constraint.transform(p)).detach().double().cpu()
        for name, p, constraint in _parameters(model)
    }


def _parameters(model: torch.nn.Module) -> Iterator[tuple[str, Tensor, Any]]:
    """(name, parameter, its constraint or None)"""
    for name, parameter in model.named_parameters():
        path, _, own = name.rpartition(".")
        owner = model.get_submodule(path)
        yield name, parameter, owner.constraint_for_parameter_name(own) if isinstance(owner, gpytorch.Module) else None


def _of_columns(value: Any, kept: Any) -> Any:
    return value if value is None or np.ndim(value) == 0 else np.asarray(value, dtype=np.float64)[kept]


def _set(
    owner: Any, name: str, value: Any, bounds: Any, settings: InsideSettings = DEFAULT, constrained: bool = False
) -> None:
    """Constraint first: it decides what the raw parameter means."""
    raw = getattr(owner, f"raw_{name}")
    start = getattr(owner, name).detach().clone()
    if value is not None:
        start = torch.as_tensor(np.asarray(value, dtype=np.float64)).to(start).expand_as(start).clone()
    if bounds is not None and not isinstance(bounds, str):
        low, high = _tensors(bounds, start) if constrained else constrain(owner, name, bounds)
        start = _inside(start, low.expand_as(start), high.expand_as(start), settings)
    owner.initialize(**{name: start})
    if isinstance(bounds, str):
        raw.requires_grad_(False)


def constrain(owner: Any, name: str, bounds: Any) -> tuple[Tensor, Tensor]:
    """Let a parameter stay between (low, high), each a number or one for each entry; these as tensors, () or (d,)."""
    raw = getattr(owner, f"raw_{name}")
    low, high = _tensors(bounds, raw.detach())
    owner.register_constraint(f"raw_{name}", constraint_of(low, high).to(raw))
    return low, high


def constraint_of(low: Any, high: Any) -> Interval:
    low, high = _tensors((low, high), torch.zeros((), dtype=torch.float64))
    return Interval(low, high) if bool(torch.isfinite(high).all()) else GreaterThan(low)


def _tensors(bounds: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    low, high = (torch.as_tensor(np.asarray(bound, dtype=np.float64)).to(like) for bound in bounds)
    return low, high


def _inside(value: Tensor, low: Tensor, high: Tensor, settings: InsideSettings) -> Tensor:
    """Above the lower bound and below the upper one, clear of both: on a bound there is no slope to leave it by."""
    top = torch.where(torch.isfinite(high), high, torch.maximum(value, 2.0 * low))
    bottom = torch.maximum(low, settings.least * top)
    margin = settings.part * (top / bottom).log()
    most = torch.where(torch.isfinite(high), top.log() - margin, torch.full_like(top, math.inf))
    return value.log().clamp(bottom.log() + margin, most).exp()


def _numbers(value: Any) -> Any:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _checked_value(name: str, value: Any, most: int) -> Any:
    if value is None:
        return None
    found = _numbers(value)
    if found is None or found.shape not in ((), (most,) if name == "lengthscale" else ()) or not _positive(found):
        raise SettingError(
            f"The '{name}' parameter of GPRegressor must be a positive number{_or_each(name, most)}. "
            f"Got {value!r:.80} instead."
        )
    return found


def _check_bounds(name: str, bounds: Any, of: str, value: Any, most: int) -> None:
    if bounds is None or (isinstance(bounds, str) and bounds == FIXED):
        return
    pair = [_numbers(bound) for bound in bounds] if isinstance(bounds, (tuple, list)) and len(bounds) == 2 else []
    shapes = ((), (most,)) if of == "lengthscale" else ((),)
    good = (
        len(pair) == 2
        and all(bound is not None and bound.shape in shapes for bound in pair)
        and bool(np.all((pair[0] >= 0) & (pair[0] < pair[1]) & np.isfinite(pair[0])))
        and not (np.isinf(pair[1]).any() and not np.isinf(pair[1]).all())
    )
    if not good:
        raise SettingError(
            f"The '{name}' parameter of GPRegressor must be 'fixed' or a pair (low, high) with 0 <= low < high, each a "
            f"number{_or_each(of, most)}. Got {bounds!r:.80} instead."
        )
    if value is not None and not bool(np.all((value > pair[0]) & (value < pair[1]))):
        raise SettingError(
            f"The '{of}' parameter of GPRegressor must lie between its bounds, {bounds!r:.60}. "
            f"Got {value.tolist()!r:.60} instead."
        )


def _positive(found: Any) -> bool:
    return bool(np.all(np.isfinite(found) & (found > 0)))


def _or_each(name: str, most: int) -> str:
    return f", or one for each of the {most} input columns" if name == "lengthscale" else ""
