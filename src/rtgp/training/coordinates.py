"""The coordinates in which training moves: logarithms of positive hyperparameters.

GPyTorch's unconstrained parameters are softplus: for large values a step of 0.1 is 0.1 in the value itself, and a
lengthscale of 100 takes a thousand of them. In the logarithm it takes fifty, and L-BFGS needs a third of the steps.
"""

from __future__ import annotations

from typing import Any, Protocol

import gpytorch
import torch
from gpytorch.constraints import GreaterThan
from torch import Tensor
from torch.nn.functional import softplus

_FURTHEST = 40.0  # of a logarithm, either way: beyond it float32 would overflow


class Coordinate(Protocol):
    """One parameter of the model, and the leaf that an optimiser moves in its place."""

    leaf: Tensor

    def pull(self) -> None:
        """Set the leaf from the parameter."""

    def push(self) -> None:
        """Set the parameter from the leaf."""

    def pull_gradient(self) -> None:
        """Set the leaf's gradient from the parameter's."""

    def slope(self) -> Tensor:
        """d parameter / d leaf, elementwise."""


class Plain:
    """The parameter is its own leaf."""

    def __init__(self, parameter: Tensor) -> None:
        self.leaf = parameter

    def pull(self) -> None: ...

    def push(self) -> None: ...

    def pull_gradient(self) -> None: ...

    def slope(self) -> Tensor:
        return torch.ones_like(self.leaf, dtype=torch.float64, requires_grad=False)


class Wide:
    """A copy in float64: small steps are not lost to rounding."""

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

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self.leaf = torch.empty_like(parameter, dtype=torch.float64, requires_grad=False)
        self.pull()

    def pull(self) -> None:
        self.leaf.copy_(softplus(self._parameter.detach().double()).log().clamp(-_FURTHEST, _FURTHEST))

    def push(self) -> None:
        with torch.no_grad():
            x = self.leaf.clamp_(-_FURTHEST, _FURTHEST).exp()
            self._parameter.copy_(x + (-torch.expm1(-x)).log())  # the inverse of softplus

    def pull_gradient(self) -> None:
        assert self._parameter.grad is not None
        self.leaf.grad = self._parameter.grad.double() * self.slope()

    def slope(self) -> Tensor:
        raw = self._parameter.detach().double()
        return softplus(raw) / raw.sigmoid()  # d softplus / d u = softplus, d softplus / d parameter = sigmoid


def logarithmic(root: torch.nn.Module, name: str, parameter: Tensor) -> Coordinate:
    """`Log` for a parameter that is positive through softplus, as GPyTorch's are unless told otherwise."""
    path, _, own = name.rpartition(".")
    owner: Any = root.get_submodule(path)
    constraint = owner.constraint_for_parameter_name(own) if isinstance(owner, gpytorch.Module) else None
    if isinstance(constraint, GreaterThan):
        transform = constraint._transform
        if transform is softplus or (isinstance(transform, torch.nn.Softplus) and transform.beta == 1.0):
            return Log(parameter)
    return Wide(parameter)
