"""Random kernels of every kind that `read_kernel` takes, and what each is worth at two points, in NumPy."""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch import kernels
from gpytorch.kernels import Kernel
from hypothesis import strategies as st
from numpy.typing import NDArray

import reference

Array = NDArray[np.float64]

STATIONARY = ("rbf", "matern12", "matern32", "matern52")
GENERIC = ("rq", "periodic", "linear", "cosine", "polynomial")

_NU = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
# One decimal: an example that fails can be read.
_scales = st.integers(3, 30).map(lambda tenths: tenths / 10)


@st.composite
def leaves(draw: st.DrawFn, d: int, kinds: tuple[str, ...] = STATIONARY + GENERIC) -> Kernel:
    """A kernel of one formula, on all columns or on some, with one lengthscale or one for each."""
    kind = draw(st.sampled_from(kinds))
    some = draw(st.booleans())
    columns = sorted(draw(st.sets(st.integers(0, d - 1), min_size=1))) if some else list(range(d))
    options = {"active_dims": tuple(columns)} if some else {}
    if kind in STATIONARY and draw(st.booleans()):
        options["ard_num_dims"] = len(columns)
    if kind == "rbf":
        made = kernels.RBFKernel(**options)
    elif kind in _NU:
        made = kernels.MaternKernel(nu=_NU[kind], **options)
    elif kind == "polynomial":
        made = kernels.PolynomialKernel(power=2, **options)
    else:
        types = {"rq": "RQKernel", "periodic": "PeriodicKernel", "linear": "LinearKernel", "cosine": "CosineKernel"}
        made = getattr(kernels, types[kind])(**options)
    made = made.double()
    if made.has_lengthscale:
        made.lengthscale = torch.tensor([draw(_scales) for _ in range(made.lengthscale.numel())]).double()
    return made


@st.composite
def kernel_trees(draw: st.DrawFn, d: int, kinds: tuple[str, ...] = STATIONARY + GENERIC) -> Kernel:
    """Up to three leaves, scaled, added and multiplied."""

    def scaled(child: Kernel) -> Kernel:
        made = kernels.ScaleKernel(child).double()
        made.outputscale = draw(_scales)
        return made

    parts = [draw(leaves(d, kinds)) for _ in range(draw(st.integers(1, 3)))]
    tree = scaled(parts[0]) if draw(st.booleans()) else parts[0]
    for part in parts[1:]:
        join = kernels.AdditiveKernel if draw(st.booleans()) else kernels.ProductKernel
        tree = join(tree, scaled(part) if draw(st.booleans()) else part).double()
        if draw(st.booleans()):
            tree = scaled(tree)
    return tree


def is_stationary(kernel: Kernel) -> bool:
    """Whether it is made of RBF and Matern kernels alone, which have formulas of their own in the library."""
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    inner = (kernels.ScaleKernel, kernels.AdditiveKernel, kernels.ProductKernel)
    return all(isinstance(part, (kernels.RBFKernel, kernels.MaternKernel, *inner)) for part in parts)


def matrix(kernel: Kernel, x1: Array, x2: Array) -> Array:
    """The kernel's values, (m, k), from the formulas in GPyTorch's documentation."""
    if isinstance(kernel, kernels.ScaleKernel):
        return _number(kernel.outputscale) * matrix(kernel.base_kernel, x1, x2)
    if isinstance(kernel, kernels.AdditiveKernel):
        return sum(matrix(child, x1, x2) for child in kernel.kernels)
    if isinstance(kernel, kernels.ProductKernel):
        return math.prod(matrix(child, x1, x2) for child in kernel.kernels)
    if kernel.active_dims is not None:
        x1, x2 = x1[:, kernel.active_dims.numpy()], x2[:, kernel.active_dims.numpy()]
    if isinstance(kernel, kernels.LinearKernel):
        return _number(kernel.variance) * x1 @ x2.T
    if isinstance(kernel, kernels.PolynomialKernel):
        return (x1 @ x2.T + _number(kernel.offset)) ** kernel.power
    difference = x1[:, None, :] - x2[None, :, :]
    if isinstance(kernel, kernels.CosineKernel):
        return np.cos(np.pi * np.sqrt((difference**2).sum(-1)) / _number(kernel.period_length))
    lengthscale = _array(kernel.lengthscale).reshape(-1) * np.ones(x1.shape[1])
    if isinstance(kernel, kernels.PeriodicKernel):  # the lengthscale itself, not its square
        sine = np.sin(np.pi * difference / _array(kernel.period_length).reshape(-1))
        return np.exp(-2 * (sine**2 / lengthscale).sum(-1))
    if isinstance(kernel, kernels.RQKernel):
        alpha = _number(kernel.alpha)
        return (1 + ((difference / lengthscale) ** 2).sum(-1) / (2 * alpha)) ** -alpha
    kind = "rbf" if isinstance(kernel, kernels.RBFKernel) else {v: k for k, v in _NU.items()}[kernel.nu]
    return reference.kernel_matrix(kind, x1, x2, lengthscale)


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().numpy()


def _number(tensor: torch.Tensor) -> float:
    return float(tensor.detach())
