"""scikit-learn's kernels as GPyTorch's: values become starting values, bounds stay bounds.

A WhiteKernel in the outermost sum is the noise. Everything is in working units, as GPyTorch kernels are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.gaussian_process import kernels as theirs

from rtgp._estimator.beginning import Beginning, constrain
from rtgp.errors import SettingError

SUPPORTED = (
    "RBF, Matern (nu of 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared (of one input), DotProduct, "
    "ConstantKernel, a WhiteKernel in the outermost sum, and sums and products of these"
)
_NUS = (0.5, 1.5, 2.5)


def translated(kernel: theirs.Kernel, columns: int, beginning: Beginning) -> tuple[Kernel, Beginning]:
    """The GPyTorch kernel, and what a WhiteKernel says of the noise. columns: of the inputs."""
    said = beginning.noise_variance is not None or beginning.noise_bounds is not None
    if said and _noises(kernel):
        raise SettingError(
            "Expected the noise to be said once. Got a WhiteKernel, and 'noise_variance' or 'noise_bounds': leave one "
            "of them out."
        )
    terms = [term for term in _summands(kernel) if not isinstance(term, theirs.WhiteKernel)]
    noises = _noises(kernel)
    if len(noises) > 1:
        raise SettingError(f"Expected at most one WhiteKernel, which is the noise. Got {len(noises)}: add them up.")
    if not terms:
        raise SettingError("Expected a kernel beside the WhiteKernel, which is the noise. Got none: add RBF(), say.")
    made = [_translated(term, columns) for term in terms]
    if noises:
        beginning = replace(
            beginning,
            noise_variance=float(noises[0].noise_level),
            noise_bounds=_bounds(noises[0].noise_level_bounds),
        )
    return made[0] if len(made) == 1 else gpytorch.kernels.AdditiveKernel(*made), beginning


def _summands(kernel: theirs.Kernel) -> list[theirs.Kernel]:
    if type(kernel) is theirs.Sum:
        return [*_summands(kernel.k1), *_summands(kernel.k2)]
    return [kernel]


def _factors(kernel: theirs.Kernel) -> list[theirs.Kernel]:
    if type(kernel) is theirs.Product:
        return [*_factors(kernel.k1), *_factors(kernel.k2)]
    return [kernel]


def _noises(kernel: theirs.Kernel) -> list[Any]:
    return [term for term in _summands(kernel) if isinstance(term, theirs.WhiteKernel)]


def _translated(kernel: Any, columns: int) -> Kernel:
    if type(kernel) is theirs.Sum:
        return gpytorch.kernels.AdditiveKernel(*(_translated(term, columns) for term in _summands(kernel)))
    if type(kernel) is theirs.Product:
        factors = _factors(kernel)
        constants = [one for one in factors if type(one) is theirs.ConstantKernel]
        others = [_translated(one, columns) for one in factors if type(one) is not theirs.ConstantKernel]
        if not others:
            return _constant(constants)
        made = others[0] if len(others) == 1 else gpytorch.kernels.ProductKernel(*others)
        return _scaled(made, constants) if constants else made
    make = _MAKERS.get(type(kernel))
    if make is None:
        raise SettingError(
            f"Cannot translate scikit-learn's {type(kernel).__name__}{_where(kernel)}. Supported are {SUPPORTED}; for "
            "others pass a GPyTorch kernel."
        )
    found: Kernel = make(kernel, columns)
    return found


def _where(kernel: Any) -> str:
    return " within a product, where it is no noise of the data" if isinstance(kernel, theirs.WhiteKernel) else ""


def _rbf(kernel: Any, columns: int) -> Kernel:
    return _with_lengthscale(gpytorch.kernels.RBFKernel, kernel, columns)


def _matern(kernel: Any, columns: int) -> Kernel:
    if math.isinf(kernel.nu):
        return _rbf(kernel, columns)
    if kernel.nu not in _NUS:
        raise SettingError(
            f"Cannot translate scikit-learn's Matern with nu={kernel.nu}. It has a closed form for 0.5, 1.5, 2.5 and "
            "inf: take one of these."
        )
    return _with_lengthscale(gpytorch.kernels.MaternKernel, kernel, columns, nu=kernel.nu)


def _rational_quadratic(kernel: Any, columns: int) -> Kernel:
    made = _with_lengthscale(gpytorch.kernels.RQKernel, kernel, columns)
    _begin(made, "alpha", kernel.alpha, kernel.alpha_bounds)
    return made


def _periodic(kernel: Any, columns: int) -> Kernel:
    if columns != 1:
        raise SettingError(
            f"Cannot translate scikit-learn's ExpSineSquared for {columns} inputs: it has a period in their distance, "
            "and GPyTorch's PeriodicKernel one in each of them. Pass gpytorch.kernels.PeriodicKernel(active_dims=...)."
        )
    made = gpytorch.kernels.PeriodicKernel()
    # Theirs divides by the square of the length scale, GPyTorch's by the lengthscale itself.
    bounds = _bounds(kernel.length_scale_bounds)
    squared = bounds if isinstance(bounds, str) else tuple(np.square(bound) for bound in bounds)
    _begin(made, "lengthscale", kernel.length_scale**2, squared)
    _begin(made, "period_length", kernel.periodicity, kernel.periodicity_bounds)
    return made


def _dot_product(kernel: Any, columns: int) -> Kernel:
    linear, constant = gpytorch.kernels.LinearKernel(), gpytorch.kernels.ConstantKernel()
    _begin(linear, "variance", 1.0, "fixed")
    bounds = _bounds(kernel.sigma_0_bounds)
    squared = bounds if isinstance(bounds, str) else tuple(np.square(bound) for bound in bounds)
    if kernel.sigma_0 == 0.0:
        return linear
    _begin(constant, "constant", kernel.sigma_0**2, squared)
    return gpytorch.kernels.AdditiveKernel(linear, constant)


def _alone(kernel: Any, columns: int) -> Kernel:
    return _constant([kernel])


_MAKERS: dict[type, Any] = {
    theirs.RBF: _rbf,
    theirs.Matern: _matern,
    theirs.RationalQuadratic: _rational_quadratic,
    theirs.ExpSineSquared: _periodic,
    theirs.DotProduct: _dot_product,
    theirs.ConstantKernel: _alone,
}


def _with_lengthscale(cls: Any, kernel: Any, columns: int, **settings: Any) -> Any:
    scale = np.atleast_1d(kernel.length_scale)
    if len(scale) not in (1, columns):
        raise SettingError(
            f"scikit-learn's {type(kernel).__name__} has {len(scale)} length scales. Expected one, or one for each of "
            f"the {columns} input columns."
        )
    made = cls(ard_num_dims=len(scale) if np.ndim(kernel.length_scale) else None, **settings)
    _begin(made, "lengthscale", kernel.length_scale, kernel.length_scale_bounds)
    return made


def _scaled(kernel: Kernel, constants: list[Any]) -> Kernel:
    made = gpytorch.kernels.ScaleKernel(kernel)
    _begin(made, "outputscale", *_product(constants))
    return made


def _constant(constants: list[Any]) -> Kernel:
    made = gpytorch.kernels.ConstantKernel()
    _begin(made, "constant", *_product(constants))
    return made


def _product(constants: list[Any]) -> tuple[float, Any]:
    """One constant for several factors: the product of their values, and of their bounds where all have some."""
    value = math.prod(float(one.constant_value) for one in constants)
    each = [_bounds(one.constant_value_bounds) for one in constants]
    free = [
        (float(one.constant_value),) * 2 if isinstance(pair, str) else pair
        for one, pair in zip(constants, each, strict=True)
    ]
    if all(isinstance(pair, str) for pair in each):
        return value, "fixed"
    return value, tuple(math.prod(float(np.ravel(pair[k])[0]) for pair in free) for k in range(2))


def _bounds(bounds: Any) -> Any:
    """Theirs, "fixed", (low, high), or a row of these for each entry, as ours."""
    if isinstance(bounds, str):
        return bounds
    pairs = np.atleast_2d(np.asarray(bounds, dtype=np.float64))
    return tuple(float(end[0]) if len(end) == 1 else end for end in pairs.T)


def _begin(owner: Any, name: str, value: Any, bounds: Any) -> None:
    raw, pair = getattr(owner, f"raw_{name}"), _bounds(bounds)
    start = torch.as_tensor(np.asarray(value, dtype=np.float64)).to(raw).expand_as(raw).clone()
    if isinstance(pair, str):
        owner.initialize(**{name: start})
        getattr(owner, f"raw_{name}").requires_grad_(False)
        return
    low, high = (end.expand_as(raw) for end in constrain(owner, name, pair))
    owner.initialize(**{name: torch.minimum(torch.maximum(start, 1.01 * low), 0.99 * high)})
