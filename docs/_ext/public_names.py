"""What the API reference covers: the public names of rtgp, read from the modules themselves."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# The public modules, in the order of the reference. What stands in an earlier one is not repeated.
MODULES = (
    "rtgp",
    "rtgp.tables",
    "rtgp.datasets",
    "rtgp.training",
    "rtgp.posterior",
    "rtgp.diagnostics",
    "rtgp.botorch",
    "rtgp.truncation",
    "rtgp.operators",
    "rtgp.distributed",
    "rtgp.errors",
)


# What people use first stands first; the other names of a module follow in their own order.
FIRST = {
    "rtgp": (
        "GPRegressor", "fit", "MarginalLogLikelihood", "posterior", "diagnose", "RRCG", "Cholesky", "CG", "FitResult",
        "History", "Posterior", "solve", "logdet",
    ),
    "rtgp.tables": ("read", "TableEncoder"),
    "rtgp.datasets": ("load", "read", "Dataset"),
}  # fmt: skip


@dataclass(frozen=True)
class Name:
    """One public name and what it stands for."""

    module: str
    name: str
    value: Any

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def kind(self) -> str:
        """The autodoc directive for it."""
        if inspect.isclass(self.value):
            return "exception" if issubclass(self.value, BaseException) else "class"
        return "function" if callable(self.value) else "data"


def names_of(module: ModuleType) -> list[str]:
    """Its __all__; without one, the classes that are defined in it."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def public_names() -> dict[str, list[Name]]:
    """Module -> its public names that are no modules, each value once."""
    seen: set[int] = set()
    found: dict[str, list[Name]] = {}
    for path in MODULES:
        module = importlib.import_module(path)
        found[path] = []
        listed = names_of(module)
        first = [name for name in FIRST.get(path, ()) if name in listed]
        for name in [*first, *(name for name in listed if name not in first)]:
            value = getattr(module, name)
            if isinstance(value, ModuleType) or id(value) in seen:
                continue
            seen.add(id(value))
            found[path].append(Name(path, name, value))
    return found
