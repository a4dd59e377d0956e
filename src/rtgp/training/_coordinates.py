"""The coordinates in which training moves: what must stay inside bounds does so by construction.

Bounds come from a parameter's constraint, which need not have a transform (BoTorch's have none), and from the support
of its prior. Above a bound training moves in the logarithm of the distance to it, between two in the logit. No Jacobian
is added: a maximum a posteriori is one in the model's own parameters.

GPyTorch's unconstrained parameters are softplus: for large values a step of 0.1 is 0.1 in the value itself, and a
lengthscale of 100 takes a thousand of them. In the logarithm it takes fifty, and L-BFGS needs a third of the steps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gpytorch
import torch
from gpytorch.constraints import GreaterThan, Interval
from torch import Tensor
from torch.nn.functional import softplus

_log = logging.getLogger("rtgp")


@dataclass(frozen=True)
class CoordinateSettings:
    """How far coordinates go, and where a start on a bound is moved. Chosen, not fitted.

    Attributes
    ----------
    furthest : float
        The largest size of a logarithm. Beyond it float32 would overflow.
    limits : tuple[float, ...]
        Largest sizes of a coordinate between bounds. The first at which rounding keeps the value inside is taken.
    moved : float
        Share of the interval by which a start on its bound, or beyond, is moved inside: it has no slope in the
        logarithm of the distance. By no more than the bound itself: a noise on its bound of 1e-4 starts at 2e-4.
    on_the_bound : float
        Part of that up to which a start counts as on the bound.
    """

    furthest: float = 40.0
    limits: tuple[float, ...] = (40.0, 30.0, 24.0, 20.0, 16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0)
    moved: float = 1e-2
    on_the_bound: float = 1e-4


DEFAULT = CoordinateSettings()


class Coordinate(Protocol):
    """One parameter of the model, and the leaf that an optimiser moves in its place."""

    leaf: Tensor
    kind: str  # of the map between them: a checkpoint is of no use to another
    logarithmic: bool  # a step of 1 is a factor, far from an upper bound

    def pull(self) -> None:
        """Set the leaf from the parameter."""

    def push(self) -> None:
        """Set the parameter from the leaf."""

    def pull_gradient(self) -> None:
        """Set the leaf's gradient from the parameter's."""

    def slope(self) -> Tensor:
        """d parameter / d leaf, elementwise."""


class Plain:
    """The parameter is its own leaf. After a step that has left its bounds it is put back."""

    kind, logarithmic = "plain", False

    def __init__(self, parameter: Tensor, bounds: tuple[Tensor, Tensor] | None = None) -> None:
        self.leaf = parameter
        self._bounds = None if bounds is None else _just_inside(bounds, parameter.dtype)

    def pull(self) -> None: ...

    def push(self) -> None:
        if self._bounds is not None:
            with torch.no_grad():
                self.leaf.clamp_(*self._bounds)

    def pull_gradient(self) -> None: ...

    def slope(self) -> Tensor:
        return torch.ones_like(self.leaf, dtype=torch.float64, requires_grad=False)


class Wide:
    """A copy in float64: small steps are not lost to rounding."""

    kind, logarithmic = "wide", False

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self.leaf = parameter.detach().double().clone()

    def pull(self) -> None:
        self.leaf.copy_(self._parameter.detach())

    def push(self) -> None:
        with torch.no_grad():
            self._parameter.copy_(self.leaf)

    def pull_gradient(self) -> None:
        assert self._parameter.grad is not None
        self.leaf.grad = self._parameter.grad.double()

    def slope(self) -> Tensor:
        return torch.ones_like(self.leaf)


class Log:
    """u = log softplus(parameter), in float64."""

    kind, logarithmic = "log", True

    def __init__(self, parameter: Tensor, settings: CoordinateSettings = DEFAULT) -> None:
        self._parameter, self._furthest = parameter, settings.furthest
        self.leaf = torch.empty_like(parameter, dtype=torch.float64, requires_grad=False)
        self.pull()

    def pull(self) -> None:
        self.leaf.copy_(softplus(self._parameter.detach().double()).log().clamp(-self._furthest, self._furthest))

    def push(self) -> None:
        with torch.no_grad():
            x = self.leaf.clamp_(-self._furthest, self._furthest).exp()
            self._parameter.copy_(x + (-torch.expm1(-x)).log())  # the inverse of softplus

    def pull_gradient(self) -> None:
        assert self._parameter.grad is not None
        self.leaf.grad = self._parameter.grad.double() * self.slope()

    def slope(self) -> Tensor:
        raw = self._parameter.detach().double()
        return softplus(raw) / raw.sigmoid()  # d softplus / d u = softplus, d softplus / d parameter = sigmoid


class Inside:
    """lower < value < upper for the value that the model computes from the parameter, in float64.

    u = log(value - lower), -log(upper - value), logit((value - lower) / (upper - lower)), or the value itself: for each
    entry as its bounds are.
    """

    kind, logarithmic = "inside", True

    def __init__(
        self,
        parameter: Tensor,
        constraint: Interval | None,
        bounds: tuple[Tensor, Tensor],
        settings: CoordinateSettings = DEFAULT,
    ) -> None:
        self._parameter, self._constraint, self._settings = parameter, constraint, settings
        self._lower, self._upper = bounds  # of the parameter's shape, float64
        self._below, self._above = torch.isfinite(self._lower), torch.isfinite(self._upper)
        self._furthest = self._limit(-1.0), self._limit(1.0)
        self.leaf = self._leaf_of(self._start())
        self.push()

    def pull(self) -> None:
        self.leaf.copy_(self._leaf_of(self._value(self._parameter.detach().double())))

    def push(self) -> None:
        with torch.no_grad():
            self.leaf.clamp_(*self._furthest)
            self._parameter.copy_(self._raw(self._value_of(self.leaf)))

    def pull_gradient(self) -> None:
        assert self._parameter.grad is not None
        self.leaf.grad = self._parameter.grad.double() * self.slope()

    def slope(self) -> Tensor:
        u = self.leaf
        rate = torch.where(self._below, u.exp(), torch.where(self._above, (-u).exp(), torch.ones_like(u)))
        rate = torch.where(self._below & self._above, (self._upper - self._lower) * u.sigmoid() * (-u).sigmoid(), rate)
        raw = self._parameter.detach().double().requires_grad_()
        with torch.enable_grad():
            (own,) = torch.autograd.grad(self._value(raw).sum(), raw)
        return rate / own

    def _start(self) -> Tensor:
        """The value that the parameter has, moved inside where it is on a bound or beyond."""
        value = self._value(self._parameter.detach().double())
        start, width = value, self._upper - self._lower
        share = self._settings.moved * torch.where(torch.isfinite(width), width, torch.ones_like(width))
        for bound, sign in ((self._lower, 1.0), (self._upper, -1.0)):
            own = bound.abs()
            amount = torch.where(torch.isfinite(width), torch.minimum(share, own), own)
            amount = torch.where(bound == 0.0, share, amount)
            on = torch.isfinite(bound) & (sign * (value - bound) <= self._settings.on_the_bound * amount)
            start = torch.where(on, bound + sign * amount, start)
        if not torch.equal(start, value):
            _log.info("A parameter of shape %s starts on a bound, or beyond: it is moved inside", tuple(value.shape))
        return start

    def _leaf_of(self, value: Tensor) -> Tensor:
        low, high = (value - self._lower).clamp_min(0.0).log(), (self._upper - value).clamp_min(0.0).log()
        both = low - high  # the logit
        leaf = torch.where(self._below, torch.where(self._above, both, low), torch.where(self._above, -high, value))
        return leaf.clamp(*self._furthest)

    def _value_of(self, leaf: Tensor) -> Tensor:
        both = self._lower + (self._upper - self._lower) * leaf.sigmoid()
        low, high = self._lower + leaf.exp(), self._upper - (-leaf).exp()
        return torch.where(self._below, torch.where(self._above, both, low), torch.where(self._above, high, leaf))

    def _value(self, raw: Tensor) -> Tensor:
        return raw if self._constraint is None else self._constraint.transform(raw)

    def _raw(self, value: Tensor) -> Tensor:
        return value if self._constraint is None else self._constraint.inverse_transform(value)

    def _limit(self, sign: float) -> Tensor:
        """How far each entry of the leaf may go without being rounded onto its bound, as the model computes it."""
        free = ~(self._below | self._above)
        limit = torch.full_like(self._lower, sign * self._settings.limits[-1])
        for size in reversed(self._settings.limits):
            leaf = torch.full_like(self._lower, sign * size)
            value = self._value(self._raw(self._value_of(leaf)).to(self._parameter.dtype)).detach().double()
            inside = (value > self._lower) & (value < self._upper) & torch.isfinite(value)
            limit = torch.where(inside, leaf, limit)
        return torch.where(free, torch.full_like(limit, sign * math.inf), limit)


def coordinates_of(
    root: torch.nn.Module,
    parameters: Mapping[str, Tensor],
    logarithms: bool = True,
    settings: CoordinateSettings = DEFAULT,
) -> list[Coordinate]:
    """A coordinate for each of the parameters, which are below `root` under these names.

    Without `logarithms` the parameters are their own leaves, as a user's optimiser expects.
    """
    constraints = {name: _constraint_of(root, name) for name in parameters}
    supports = _supports(root, parameters, constraints)
    return [
        _coordinate(parameter, constraints[name], supports.get(name), logarithms, settings)
        for name, parameter in parameters.items()
    ]


def _coordinate(
    parameter: Tensor,
    constraint: Interval | None,
    support: tuple[Tensor, Tensor] | None,
    logarithms: bool,
    settings: CoordinateSettings,
) -> Coordinate:
    lower, upper = (_filled(bound, parameter) for bound in (-math.inf, math.inf))
    if constraint is not None:
        lower, upper = (_filled(bound, parameter) for bound in (constraint.lower_bound, constraint.upper_bound))
    by_transform = _is_softplus(constraint)
    if support is not None:
        by_transform = by_transform and bool((support[0] <= lower).all() and (support[1] >= upper).all())
        lower, upper = torch.maximum(lower, support[0]), torch.minimum(upper, support[1])
    bounded = bool((torch.isfinite(lower) | torch.isfinite(upper)).any())
    if not logarithms:
        raw = _raw_bounds(constraint, lower, upper) if bounded and not by_transform else None
        return Plain(parameter, raw)
    if by_transform:
        return Log(parameter, settings)
    invertible = constraint is None or not constraint.enforced or constraint._inv_transform is not None
    return Inside(parameter, constraint, (lower, upper), settings) if bounded and invertible else Wide(parameter)


def _constraint_of(root: torch.nn.Module, name: str) -> Interval | None:
    path, _, own = name.rpartition(".")
    owner: Any = root.get_submodule(path)
    return owner.constraint_for_parameter_name(own) if isinstance(owner, gpytorch.Module) else None


def _is_softplus(constraint: Interval | None) -> bool:
    """Whether the parameter is positive through softplus, the default of GPyTorch."""
    if not isinstance(constraint, GreaterThan):
        return False
    transform = constraint._transform
    return transform is softplus or (isinstance(transform, torch.nn.Softplus) and transform.beta == 1.0)


def _supports(
    root: torch.nn.Module, parameters: Mapping[str, Tensor], constraints: Mapping[str, Interval | None]
) -> dict[str, tuple[Tensor, Tensor]]:
    """The bounds that priors set to values of single parameters."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for value, bounds in _bounded_priors(root):
        gradients = torch.autograd.grad(value.sum(), list(parameters.values()), allow_unused=True)
        reached = [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
        if len(reached) != 1:  # of several, or of a fixed one: there is no coordinate that could keep it
            continue
        (name,) = reached
        parameter, constraint = parameters[name], constraints[name]
        own = parameter if constraint is None else constraint.transform(parameter)
        if not torch.equal(value.detach().reshape(-1), own.detach().reshape(-1)):  # of some function of it
            continue
        lower, upper = (_filled(bound, parameter) for bound in bounds)
        known = found.get(name, (lower, upper))
        found[name] = torch.maximum(lower, known[0]), torch.minimum(upper, known[1])
    return found


def _bounded_priors(root: torch.nn.Module) -> Iterator[tuple[Tensor, tuple[Any, Any]]]:
    """(value, (lower, upper)) of each prior whose support has bounds for every entry by itself."""
    for module in root.modules():
        for prior, closure, _ in getattr(module, "_priors", {}).values():
            if getattr(prior, "_transform", None) is not None:
                continue
            try:
                support = prior.support
            except NotImplementedError:
                continue
            support = getattr(support, "base_constraint", support)
            bounds = getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)
            if bounds == (-math.inf, math.inf):
                continue
            with torch.enable_grad():
                value = closure(module)
            if isinstance(value, Tensor) and value.requires_grad:
                yield value, bounds


def _filled(bound: Any, parameter: Tensor) -> Tensor:
    """A bound for every entry of the parameter, in float64."""
    given = torch.as_tensor(bound, dtype=torch.float64, device=parameter.device).detach()
    return given.expand(parameter.shape).clone()


def _raw_bounds(constraint: Interval | None, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Of the parameter, where these are its value's."""
    if constraint is None or not constraint.enforced:
        return lower, upper
    low, high = constraint.inverse_transform(lower).detach(), constraint.inverse_transform(upper).detach()
    return low.nan_to_num(-math.inf, math.inf, -math.inf), high.nan_to_num(math.inf, math.inf, -math.inf)


def _just_inside(bounds: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The least and the largest number between them in this precision."""
    lower, upper = (bound.to(dtype) for bound in bounds)
    infinite = torch.full_like(lower, math.inf)
    least = torch.where(torch.isfinite(lower), torch.nextafter(lower, infinite), lower)
    return least, torch.where(torch.isfinite(upper), torch.nextafter(upper, -infinite), upper)
