"""What identifies the problem of a checkpoint: data, model and likelihood, not the parameters' values."""

from __future__ import annotations

import hashlib
from typing import Any

import gpytorch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.priors import Prior
from torch import Tensor

from rtgp._objectives.reading import known_noise
from rtgp.training._problem import Problem


def fingerprint(problem: Problem) -> dict[str, str]:
    """By name, what two problems must share for a checkpoint of one to serve the other."""
    shapes = {name: (tuple(p.shape), str(p.dtype)) for name, p in problem.parameters.items()}
    return {
        "data": hashlib.sha256(_bytes(problem.X) + _bytes(problem.y)).hexdigest(),
        "shape of the data": f"{tuple(problem.X.shape)} {problem.X.dtype}",
        "parameters": ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in shapes.items()),
        "model": _structure(problem.mll),
        "fixed numbers of the model": _fixed_numbers(problem.mll),
    }


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().numpy().tobytes()


def _structure(root: Any) -> str:
    """Model, likelihood, mean and kernels by name, and a digest of all modules with their plain settings (such as nu),
    which their printed form leaves out."""
    words = []
    for name, module in root.named_modules():
        if module is root:
            continue
        settings = vars(module) if isinstance(module, gpytorch.Module) else {}
        plain = {
            key: value
            for key, value in settings.items()
            if not key.startswith("_") and key != "training" and isinstance(value, (bool, int, float, str))
        }
        words.append(f"{name}: {type(module).__name__}{plain or ''}")
    kinds = (type(root.model), type(root.likelihood))
    parts = [module for module in root.modules() if isinstance(module, (Mean, Kernel))]
    names = [*(kind.__name__ for kind in kinds), *(_kernel_name(module) for module in parts)]
    return f"{', '.join(names)}; digest {hashlib.sha256(chr(10).join(words).encode()).hexdigest()[:16]}"


def _kernel_name(module: Any) -> str:
    nu = getattr(module, "nu", None)
    return type(module).__name__ + (f"(nu={nu})" if isinstance(nu, (int, float)) else "")


def _fixed_numbers(root: Any) -> str:
    """A digest for each group of them: what is not trained and yet decides the optimum."""
    noise = known_noise(root.likelihood)
    known = {} if noise is None else {"noise": noise}
    fixed = {name: p for name, p in root.named_parameters() if not p.requires_grad}
    bounds: dict[str, Tensor] = {}
    priors: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    for path, module in root.named_modules():
        own = dict(module.named_buffers(recurse=False))
        if isinstance(module, Prior):  # some keep their parameters as plain attributes
            own.update({name: value for name, value in vars(module).items() if isinstance(value, Tensor)})
        group = bounds if isinstance(module, Interval) else priors if isinstance(module, Prior) else others
        group.update({f"{path}.{name}": value for name, value in own.items()})
    groups = {"known noise": known, "fixed parameters": fixed, "bounds": bounds, "priors": priors, "others": others}
    return ", ".join(f"{kind} {_digest(numbers)}" for kind, numbers in groups.items() if numbers) or "none"


def _digest(numbers: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(numbers):
        digest.update(name.encode() + _bytes(numbers[name]))
    return digest.hexdigest()[:8]
