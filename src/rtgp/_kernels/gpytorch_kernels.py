"""Reads GPyTorch's kernels into `KernelForm` trees, and says what it cannot read.

A kernel with a batch shape is a batch of kernels: `at` says which one is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch import kernels
from gpytorch.lazy import LazyEvaluatedKernelTensor
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from rtgp._kernels.compact import of_gpytorch
from rtgp._kernels.composites import Product, Scaled, Sum
from rtgp._kernels.form import KernelForm
from rtgp._kernels.formulas import MATERN, RBF
from rtgp._kernels.generic import Generic
from rtgp._kernels.outputs import ManyOutputs
from rtgp._kernels.positions import At, Table
from rtgp._kernels.raw import Raw
from rtgp._kernels.read_operator import Position, picked, picked_operator, read_operator
from rtgp._kernels.stationary import Stationary
from rtgp.errors import InputError, UnsupportedModelError

# Approximations of their own, which give a covariance of all points at once: of some points they give another one.
_WHOLE = (kernels.InducingPointKernel, kernels.GridKernel)  # GridInterpolationKernel is a GridKernel


def _same(x: Tensor) -> Tensor:
    return x


def selecting(select: Callable[[Tensor], Tensor], active_dims: Tensor | None) -> Callable[[Tensor], Tensor]:
    if active_dims is None:
        return select
    return lambda x: select(x).index_select(-1, active_dims)


class KernelBlock(torch.nn.Module):
    """A GPyTorch kernel as a module: two sets of (already selected) inputs -> one dense block."""

    def __init__(
        self, kernel: kernels.Kernel, sum_over_batch: bool, params: dict[str, Any], at: Position | None = None
    ) -> None:
        super().__init__()
        self.kernel, self.sum_over_batch, self.params, self.at = kernel, sum_over_batch, params, at

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        # trace_mode makes GPyTorch use plain differentiable operations, which forward-mode derivatives need too.
        with gpytorch.settings.trace_mode(True):
            block: Tensor = LazyEvaluatedKernelTensor(x1, x2, kernel=self.kernel, **self.params).to_dense()
        if self.sum_over_batch:
            return block.sum(-3)
        return picked(block, self.at, 2) if self.kernel.batch_shape else block


def read_kernel(kernel: kernels.Kernel, x: Tensor, dtype: torch.dtype | None = None) -> KernelForm:
    """The covariance matrix of `kernel` at the points x (n, d); blocks in `dtype`, the inputs' own by default."""
    if not isinstance(kernel, kernels.Kernel):
        raise UnsupportedModelError(
            f"Expected a gpytorch.kernels.Kernel. Got {type(kernel).__name__} instead. "
            "Pass, for example, gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())."
        )
    if not isinstance(x, Tensor):
        raise InputError(f"Expected the inputs as a torch.Tensor. Got {type(x).__name__}: pass torch.as_tensor(X).")
    if x.ndim == 1:
        x = x[:, None]
    if x.ndim != 2 or x.shape[0] == 0:
        raise InputError(
            f"Expected inputs of shape (n, d) with n > 0. Got {tuple(x.shape)}; batches of models are not supported."
        )
    if not bool(torch.isfinite(x).all()):
        raise InputError("The inputs hold NaN or infinity. Drop or fill those rows.")
    if len(kernel.batch_shape) > 0:
        raise UnsupportedModelError(
            f"Expected one kernel. {type(kernel).__name__} has batch shape {tuple(kernel.batch_shape)}: take one of "
            "the batch, kernel[0]."
        )
    return _read_child(kernel, x, _same, dtype or working_dtype(kernel, x), None)


def working_dtype(kernel: kernels.Kernel, x: Tensor) -> torch.dtype:
    """The dtype of the inputs, or of the kernel where the inputs are integers (an index, a category)."""
    dtype: torch.dtype = x.dtype if x.is_floating_point() else kernel.dtype
    return dtype


def _read_child(
    kernel: kernels.Kernel, x: Tensor, select: Callable[[Tensor], Tensor], dtype: torch.dtype, at: Position | None
) -> KernelForm:
    active_dims = kernel.active_dims
    if active_dims is not None:
        x = x.index_select(-1, active_dims)
    return read_selected(kernel, x, selecting(select, active_dims), dtype, {}, at)


def read_selected(
    kernel: kernels.Kernel,
    x: Tensor,
    select: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    params: dict[str, Any],
    at: Position | None = None,
) -> KernelForm:
    """`x` (n, d) holds the kernel's active inputs already; `select` does the same to new points. at: which kernel of a
    batch, whose batch shape may be shorter."""
    if x.ndim != 2:
        raise UnsupportedModelError(
            f"Expected the inputs of {type(kernel).__name__} as (n, d). Got shape {tuple(x.shape)}."
        )
    if kernel.ard_num_dims is not None and kernel.ard_num_dims != x.shape[1]:
        raise InputError(
            f"{type(kernel).__name__} has ard_num_dims={kernel.ard_num_dims}. Got inputs with {x.shape[1]} columns: "
            "give it one lengthscale for each of its inputs, or choose them by active_dims."
        )
    if not params:
        exact = type(kernel)  # a subclass may compute something else
        if exact is kernels.ScaleKernel:
            # ScaleKernel takes over its base kernel's active_dims: they have been applied already.
            inner = read_selected(kernel.base_kernel, x, select, dtype, {}, at)
            return Scaled(picked(kernel.outputscale, at, 0), inner, _raw(kernel, "outputscale", at, 0))
        if exact is kernels.AdditiveKernel:
            return Sum([_read_child(child, x, select, dtype, at) for child in kernel.kernels])
        if exact is kernels.ProductKernel:
            return Product([_read_child(child, x, select, dtype, at) for child in kernel.kernels])
        if exact in (kernels.RBFKernel, kernels.MaternKernel):
            formula = RBF if exact is kernels.RBFKernel else MATERN[kernel.nu]
            lengthscale = picked(kernel.lengthscale, at, 2).reshape(1, -1)
            return Stationary(formula, x, lengthscale, _raw(kernel, "lengthscale", at, 2), select, dtype)
        if exact is kernels.PiecewisePolynomialKernel:
            formula = of_gpytorch(kernel.q, x.shape[1])
            lengthscale = picked(kernel.lengthscale, at, 2).reshape(1, -1)
            return Stationary(formula, x, lengthscale, _raw(kernel, "lengthscale", at, 2), select, dtype)
        if exact is kernels.MultitaskKernel:
            return _read_tasks(kernel, x, select, dtype, at)
        if exact is kernels.LCMKernel:
            return Sum([_read_tasks(one, x, select, dtype, at) for one in kernel.covar_module_list])
    if has_own_points(kernel):
        return _read_whole(kernel, x, select, dtype, params, at)
    outputs = kernel.num_outputs_per_input(x, x)
    block = KernelBlock(kernel, False, params, at)
    return Generic(block, x, select, dtype) if outputs == 1 else ManyOutputs(block, x, outputs, select, dtype)


def has_own_points(kernel: kernels.Kernel) -> bool:
    """Whether a grid or inducing points are in it."""
    return any(isinstance(module, _WHOLE) for module in kernel.modules())


def _read_tasks(
    kernel: kernels.MultitaskKernel,
    x: Tensor,
    select: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    at: Position | None,
) -> KernelForm:
    """K_x kron B, the rows of a point side by side. (GPyTorch calls the kernel of the data without its active_dims.)"""
    between_points = read_selected(kernel.data_covar_module, x, select, dtype, {}, at)
    between_tasks = picked(kernel.task_covar_module.covar_matrix.to_dense(), at, 2)
    row = torch.arange(len(x) * kernel.num_tasks, device=x.device)
    tasks = Table(between_tasks, row % kernel.num_tasks, dtype)
    return Product([At(between_points, row // kernel.num_tasks), tasks])


def _read_whole(
    kernel: kernels.Kernel,
    x: Tensor,
    select: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    params: dict[str, Any],
    at: Position | None,
) -> KernelForm:
    covariance = LazyEvaluatedKernelTensor(x, x, kernel=kernel, **params).evaluate_kernel()
    if type(kernel) is kernels.GridKernel and isinstance(covariance, DenseLinearOperator):  # these are not its points
        return read_selected(kernel.base_kernel, x, select, dtype, params, at)
    return read_operator(picked_operator(covariance, at))


def _raw(kernel: kernels.Kernel, quantity: str, at: Position | None, trailing: int) -> Raw | None:
    """The trainable parameter behind kernel.lengthscale or kernel.outputscale; None if it is fixed."""
    parameter = getattr(kernel, f"raw_{quantity}")
    if not parameter.requires_grad:
        return None
    with torch.enable_grad():
        (jacobian,) = torch.autograd.grad(getattr(kernel, quantity).sum(), parameter)
    if parameter.ndim == trailing or not kernel.batch_shape:
        return Raw(parameter, jacobian.double())
    places = torch.arange(parameter.numel(), device=parameter.device).reshape(parameter.shape)
    return Raw(parameter, picked(jacobian.double(), at, trailing), picked(places, at, trailing).reshape(-1))
