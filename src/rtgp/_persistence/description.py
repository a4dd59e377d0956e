"""Kernels and settings objects as plain JSON data, and back.

Only classes from a fixed list are described or made: nothing in a file can name code to run.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import gpytorch
import torch
from gpytorch import constraints, kernels
from torch import Tensor

from rtgp import truncation
from rtgp._methods import METHODS
from rtgp._preconditioners import Automatic, LowRankAndNeighbours, Neighbours, PivotedCholesky
from rtgp.errors import InputError, UnsupportedModelError

Description = dict[str, Any]

# What each kernel's constructor needs besides ard_num_dims and active_dims. Its values travel in its state.
_KERNELS: dict[str, tuple[str, ...]] = {
    "RBFKernel": (),
    "MaternKernel": ("nu",),
    "RQKernel": (),
    "PeriodicKernel": (),
    "CosineKernel": (),
    "LinearKernel": (),
    "PolynomialKernel": ("power",),
    "PiecewisePolynomialKernel": ("q",),
    "ConstantKernel": (),
    "SpectralMixtureKernel": ("num_mixtures",),
    "ScaleKernel": (),
    "AdditiveKernel": (),
    "ProductKernel": (),
}
_CONSTRAINTS: dict[str, type[Any]] = {
    name: getattr(constraints, name) for name in ("Positive", "GreaterThan", "LessThan", "Interval")
}
_TRANSFORMS: dict[str | None, Any] = {
    "sigmoid": torch.sigmoid,
    "softplus": constraints.constraints.softplus,
    "exp": torch.exp,
    None: None,
}
_INVERSES = {
    "sigmoid": gpytorch.utils.transforms.inv_sigmoid,
    "softplus": gpytorch.utils.transforms.inv_softplus,
    "exp": torch.log,
    None: None,
}
_SETTINGS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *METHODS.values(),
        Automatic,
        LowRankAndNeighbours,
        Neighbours,
        PivotedCholesky,
        truncation.ExponentialDecay,
        truncation.Fixed,
        truncation.Geometric,
        truncation.PowerLaw,
        truncation.ResidualDriven,
        truncation.Tabulated,
        truncation.Uniform,
    )
}
_MOST_KERNELS = 1000
_DEEPEST = 32


def describe_kernel(kernel: kernels.Kernel) -> Description:
    """The structure of a kernel made of GPyTorch's own classes; an error for any other."""
    description = _describe_kernel(kernel)
    state = state_without_priors(kernel)
    rebuilt = make_kernel(description, _largest_dimension(kernel), sum(t.numel() for t in state.values()))
    if {k: v.shape for k, v in rebuilt.state_dict().items()} != {k: v.shape for k, v in state.items()}:
        raise _cannot_save(f"a {type(kernel).__name__} with parameters, batches or bounds beyond GPyTorch's own")
    return description


def make_kernel(description: Any, dimension: int, elements: int) -> kernels.Kernel:
    """The kernel of a description for inputs of `dimension` columns, whose state has `elements` numbers.

    Every size in the description is held against these two before anything is allocated.
    """
    return _Maker(dimension, elements).kernel(description, 0)


def state_without_priors(module: torch.nn.Module) -> dict[str, Tensor]:
    """The state of a model or kernel but for its priors, which training needs and prediction does not."""
    priors = [f"{name}." for name, part in module.named_modules() if isinstance(part, gpytorch.priors.Prior)]
    return {name: t for name, t in module.state_dict().items() if not name.startswith(tuple(priors))}


def load_state(module: torch.nn.Module, state: dict[str, Tensor]) -> None:
    """Give a module, made of a description, its numbers. Those that choose columns are what the description says."""
    for name, made in module.named_buffers(remove_duplicate=False):
        if not made.is_floating_point() and name in state and not torch.equal(made, state[name].to(made.device)):
            raise InputError(f"{name:.80} is another than in the description of the kernel.")
    module.load_state_dict(state)


def describe_settings(value: Any) -> Any:
    """A settings object (a method, a preconditioner, a truncation rule) as JSON data."""
    if type(value) in _SETTINGS.values():
        facts = {name: describe_settings(getattr(value, name)) for name in _described(type(value))}
        return {"class": type(value).__name__, **facts}
    if isinstance(value, (tuple, list)):
        return [describe_settings(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnsupportedModelError(
        f"Cannot save a settings object of type {type(value).__name__}: model files know rtgp's own methods, "
        "preconditioners and truncation rules only. Train with one of these, or keep the estimator by pickle."
    )


def make_settings(description: Any) -> Any:
    """The settings object of a description; its own checks run again."""
    if isinstance(description, list):
        return tuple(make_settings(item) for item in description)
    if not isinstance(description, dict):
        return description
    cls = _SETTINGS.get(str(description.get("class")))
    if cls is None:
        raise InputError(f"unknown settings class {description.get('class')!r:.80}.")
    known = _described(cls)
    facts = {name: make_settings(value) for name, value in description.items() if name != "class"}
    if not facts.keys() <= set(known):
        raise InputError(f"unknown setting(s) {sorted(facts.keys() - set(known))} of {cls.__name__}.")
    return cls(**facts)


def _described(cls: type[Any]) -> list[str]:
    """The fields that a file holds: private ones are for ablations of a training."""
    return [f.name for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")]


def _cannot_save(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Cannot save {what}: model files know these kernels of gpytorch.kernels only, nested in one another: "
        f"{', '.join(_KERNELS)}. Build the kernel from them, or keep the estimator by pickle."
    )


def _describe_kernel(kernel: kernels.Kernel) -> Description:
    name = type(kernel).__name__
    if name not in _KERNELS or type(kernel) is not getattr(kernels, name):
        raise _cannot_save(f"a kernel of type {type(kernel).__module__}.{name}")
    facts: Description = {"class": name, **{fact: getattr(kernel, fact) for fact in _KERNELS[name]}}
    if name == "ScaleKernel":
        facts["kernels"] = [_describe_kernel(kernel.base_kernel)]
    elif name in ("AdditiveKernel", "ProductKernel"):
        facts["kernels"] = [_describe_kernel(child) for child in kernel.kernels]
    else:
        facts["ard_num_dims"] = kernel.ard_num_dims
    if kernel.active_dims is not None and name != "ScaleKernel":  # a ScaleKernel takes them from its base
        facts["active_dims"] = kernel.active_dims.tolist()
    facts["constraints"] = {key: _describe_constraint(c) for key, c in kernel._constraints.items()}
    facts["fixed"] = [key for key, parameter in kernel._parameters.items() if not parameter.requires_grad]
    return facts


def _describe_constraint(constraint: constraints.Interval) -> Description:
    name = type(constraint).__name__
    transform = next((word for word, known in _TRANSFORMS.items() if _same_transform(constraint._transform, known)), "")
    bounds = (constraint.lower_bound, constraint.upper_bound)
    if _CONSTRAINTS.get(name) is not type(constraint) or transform == "" or any(b.ndim > 1 for b in bounds):
        raise _cannot_save(f"the constraint {constraint}, or its transform,")
    # The bounds are in the state too, to the last digit; here they say what the constraint is to begin with.
    return {"class": name, "transform": transform, "bounds": [_describe_bound(b) for b in bounds]}


def _describe_bound(bound: Tensor) -> str | list[str]:
    """A number, or one for each entry of the parameter."""
    values = [str(value) for value in bound.reshape(-1).tolist()]
    return values[0] if bound.numel() == 1 else values


def _same_transform(given: Any, known: Any) -> bool:
    if isinstance(known, torch.nn.Softplus):  # a module, of which a copied kernel has a copy
        return isinstance(given, torch.nn.Softplus) and (given.beta, given.threshold) == (known.beta, known.threshold)
    return given is known


def _make_constraint(facts: Any, entries: int) -> constraints.Interval:
    """entries: of its parameter."""
    if not isinstance(facts, dict) or facts.get("class") not in _CONSTRAINTS:
        raise InputError(f"unknown constraint {facts!r:.80}.")
    name, transform = facts["class"], facts.get("transform")
    try:
        lower, upper = (_make_bound(bound, entries) for bound in facts["bounds"])
        transforms = {"transform": _TRANSFORMS[transform], "inv_transform": _INVERSES[transform]}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a constraint that makes no sense: {facts!r:.120}.") from error
    arguments: dict[str, tuple[float | Tensor, ...]] = {"Positive": (), "GreaterThan": (lower,), "LessThan": (upper,)}
    return _CONSTRAINTS[name](*arguments.get(name, (lower, upper)), **transforms)


def _make_bound(value: Any, entries: int) -> float | Tensor:
    if not isinstance(value, list):
        return float(value)
    if len(value) != entries:
        raise ValueError(f"{len(value)} bounds for {entries} entries")
    return torch.tensor([float(one) for one in value])


def _largest_dimension(kernel: kernels.Kernel) -> int:
    """An input dimension that the kernel's own sizes cannot exceed."""
    sizes = [1]
    for part in kernel.modules():
        if isinstance(part, kernels.Kernel):
            sizes.append(part.ard_num_dims or 1)
            if part.active_dims is not None:
                sizes += [int(part.active_dims.max()) + 1, part.active_dims.numel()]
    return max(sizes)


class _Maker:
    def __init__(self, dimension: int, elements: int) -> None:
        self.dimension, self.elements, self.made = dimension, elements, 0
        self.left = elements  # every kernel's own numbers are in the state: no more of them are made

    def kernel(self, facts: Any, depth: int) -> kernels.Kernel:
        self.made += 1
        if depth > _DEEPEST or self.made > _MOST_KERNELS:
            raise InputError(f"a kernel of more than {_MOST_KERNELS} parts or {_DEEPEST} levels.")
        name = facts.get("class") if isinstance(facts, dict) else None
        if name not in _KERNELS:
            raise InputError(f"unknown kernel class {name!r:.80}.")
        arguments = {fact: self._fact(fact, facts.get(fact)) for fact in _KERNELS[name]}
        children = facts.get("kernels", [])
        if not isinstance(children, list):
            raise InputError("a list of kernels that is none.")
        parts = [self.kernel(child, depth + 1) for child in children]
        try:
            kernel = self._make(name, facts, arguments, parts)
            self.left -= sum(parameter.numel() for parameter in kernel._parameters.values())
            if self.left < 0:
                raise InputError(f"a kernel of more than the {self.elements} numbers of its state.")
            for key, constraint in facts.get("constraints", {}).items():
                name = key.removesuffix("_constraint")
                kernel.register_constraint(name, _make_constraint(constraint, kernel._parameters[name].numel()))
            for key in facts.get("fixed", []):
                kernel._parameters[key].requires_grad_(False)
        except InputError:
            raise
        except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"a description of {name} that GPyTorch does not accept ({error!s:.200}).") from error
        return kernel

    def _make(
        self, name: str, facts: Description, arguments: Description, parts: list[kernels.Kernel]
    ) -> kernels.Kernel:
        cls = getattr(kernels, name)
        if name == "ScaleKernel":
            (base,) = parts
            return cls(base)
        if name in ("AdditiveKernel", "ProductKernel"):
            return cls(*parts)
        if facts.get("ard_num_dims") is not None:
            arguments["ard_num_dims"] = self._fact("ard_num_dims", facts.get("ard_num_dims"))
        if arguments.get("num_mixtures", 1) * arguments.get("ard_num_dims", 1) > self.elements:
            raise InputError(f"{name} of more than the {self.elements} numbers of its state.")
        active = facts.get("active_dims")
        if active is not None:
            within = isinstance(active, list) and 0 < len(active) <= self.dimension
            if not within or not all(type(i) is int and 0 <= i < self.dimension for i in active):
                raise InputError(f"active_dims outside the {self.dimension} input columns.")
        return cls(**arguments, active_dims=None if active is None else tuple(active))

    def _fact(self, name: str, value: Any) -> Any:
        if name == "nu":
            valid = value in (0.5, 1.5, 2.5)
        elif name == "ard_num_dims":
            valid = isinstance(value, int) and 1 <= value <= self.dimension
        else:  # num_mixtures, power, q
            valid = isinstance(value, int) and 0 <= value <= min(self.elements, _MOST_KERNELS)
        if not valid or isinstance(value, bool):
            raise InputError(f"{name} = {value!r:.40} for inputs of {self.dimension} columns.")
        return value
