"""Reads GPyTorch's kernels and lazily evaluated covariances into `KernelForm` trees, and says what it cannot read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch import kernels
from gpytorch.lazy import LazyEvaluatedKernelTensor
from linear_operator.operators import (
    ConstantMulLinearOperator,
    DenseLinearOperator,
    DiagLinearOperator,
    LinearOperator,
    MulLinearOperator,
    PsdSumLinearOperator,
    SumBatchLinearOperator,
    SumLinearOperator,
)
from torch import Tensor

from rtgp.errors import InputError, UnsupportedModelError
from rtgp.kernels.forms import Generic, KernelForm, Product, Raw, Scaled, Stationary, Sum
from rtgp.kernels.formulas import MATERN, RBF

# Kernels that are not a function of two points, or that are an approximation of their own.
_REFUSED = tuple(
    getattr(kernels, name)
    for name in ("InducingPointKernel", "MultitaskKernel", "LCMKernel", "GridKernel", "GridInterpolationKernel")
    if hasattr(kernels, name)
)


def _same(x: Tensor) -> Tensor:
    return x


def _selecting(select: Callable[[Tensor], Tensor], active_dims: Tensor | None) -> Callable[[Tensor], Tensor]:
    if active_dims is None:
        return select
    return lambda x: select(x).index_select(-1, active_dims)


class _KernelBlock(torch.nn.Module):
    """A GPyTorch kernel as a module: two sets of (already selected) inputs -> one dense block."""

    def __init__(self, kernel: kernels.Kernel, sum_over_batch: bool, params: dict[str, Any]) -> None:
        super().__init__()
        self.kernel, self.sum_over_batch, self.params = kernel, sum_over_batch, params

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        # trace_mode makes GPyTorch use plain differentiable operations, which forward-mode derivatives need too.
        with gpytorch.settings.trace_mode(True):
            block: Tensor = LazyEvaluatedKernelTensor(x1, x2, kernel=self.kernel, **self.params).to_dense()
        return block.sum(-3) if self.sum_over_batch else block


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
    return _read_child(kernel, x, _same, dtype or _working_dtype(kernel, x))


def _working_dtype(kernel: kernels.Kernel, x: Tensor) -> torch.dtype:
    """The inputs' own; the kernel's where the inputs are integers (an index, a category)."""
    dtype: torch.dtype = x.dtype if x.is_floating_point() else kernel.dtype
    return dtype


def _read_child(
    kernel: kernels.Kernel, x: Tensor, select: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> KernelForm:
    active_dims = kernel.active_dims
    if active_dims is not None:
        x = x.index_select(-1, active_dims)
    return _read_selected(kernel, x, _selecting(select, active_dims), dtype, {})


def _read_selected(
    kernel: kernels.Kernel,
    x: Tensor,
    select: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    params: dict[str, Any],
) -> KernelForm:
    """`x` holds the kernel's active inputs already; `select` does the same to new points."""
    if isinstance(kernel, _REFUSED) or kernel.num_outputs_per_input(x, x) != 1:
        raise UnsupportedModelError(
            f"{type(kernel).__name__} cannot be used here: rtgp needs a kernel that gives one value for each pair of "
            "points (multitask and inducing-point kernels do not). Use the kernel inside it, or another library."
        )
    if len(kernel.batch_shape) > 0 or x.ndim != 2:
        raise UnsupportedModelError(
            f"{type(kernel).__name__} has batch shape {tuple(kernel.batch_shape)} and inputs of shape "
            f"{tuple(x.shape)}. Batches of models are not supported: train one model at a time."
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
            inner = _read_selected(kernel.base_kernel, x, select, dtype, {})
            return Scaled(kernel.outputscale, inner, _raw(kernel, "outputscale"))
        if exact is kernels.AdditiveKernel:
            return Sum([_read_child(child, x, select, dtype) for child in kernel.kernels])
        if exact is kernels.ProductKernel:
            return Product([_read_child(child, x, select, dtype) for child in kernel.kernels])
        if exact in (kernels.RBFKernel, kernels.MaternKernel):
            formula = RBF if exact is kernels.RBFKernel else MATERN[kernel.nu]
            lengthscale = kernel.lengthscale.reshape(1, -1)
            return Stationary(formula, x, lengthscale, _raw(kernel, "lengthscale"), select, dtype)
    return Generic(_KernelBlock(kernel, False, params), x, select, dtype)


def _raw(kernel: kernels.Kernel, quantity: str) -> Raw | None:
    """The trainable parameter behind kernel.lengthscale or kernel.outputscale; None if it is fixed."""
    parameter = getattr(kernel, f"raw_{quantity}")
    if not parameter.requires_grad:
        return None
    with torch.enable_grad():
        (jacobian,) = torch.autograd.grad(getattr(kernel, quantity).sum(), parameter)
    return Raw(parameter, jacobian.double())


def read_covariance(covariance: LinearOperator | Tensor, dtype: torch.dtype | None = None) -> KernelForm:
    """The form behind the covariance of `model(train_x)`: a lazily evaluated kernel, or sums and constant multiples of
    such. (A product of two calls is out of reach: GPyTorch evaluates it at once.)"""
    if isinstance(covariance, LazyEvaluatedKernelTensor):
        return _read_lazy(covariance, dtype)
    if isinstance(covariance, (SumLinearOperator, PsdSumLinearOperator)):
        return Sum([read_covariance(part, dtype) for part in covariance.linear_ops])
    if isinstance(covariance, ConstantMulLinearOperator):
        constant = covariance._constant
        if constant.numel() != 1:
            raise UnsupportedModelError("A covariance multiplied by more than one constant is a batch of models.")
        return Scaled(constant, read_covariance(covariance.base_linear_op, dtype))
    if isinstance(covariance, SumBatchLinearOperator):
        return _read_batch_sum(covariance, dtype)
    raise _unreadable(covariance)


def _read_batch_sum(covariance: SumBatchLinearOperator, dtype: torch.dtype | None) -> KernelForm:
    """Additive structure, kernel(x.mT.unsqueeze(-1)).sum(-3): a batch of kernels, summed."""
    base = covariance.base_linear_op  # summed over its last batch dimension, -3
    if isinstance(base, ConstantMulLinearOperator) and base._constant.numel() == 1:  # linear_operator moves it inside
        return Scaled(base._constant, _read_batch_sum(SumBatchLinearOperator(base.base_linear_op), dtype))
    if not isinstance(base, LazyEvaluatedKernelTensor) or base.dim() != 3:
        raise _unreadable(covariance)
    _require_square(base)
    block = _KernelBlock(base.kernel, True, dict(base.params))
    return Generic(block, base.x1, _same, dtype or _working_dtype(base.kernel, base.x1))


def _unreadable(covariance: LinearOperator | Tensor) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Cannot read a covariance of type {type(covariance).__name__}. Expected a GPyTorch kernel called on the "
        f"training inputs, or sums and constant multiples of such calls. {_remedy(covariance)}"
    )


def _remedy(covariance: LinearOperator | Tensor) -> str:
    if isinstance(covariance, (Tensor, DenseLinearOperator, MulLinearOperator)):
        return (
            "This one has been evaluated already, as kernel(x).to_dense() and kernel1(x) * kernel2(x) do: return "
            "MultivariateNormal(mean, kernel(x)) from the model's forward, and write a product as "
            "(kernel1 * kernel2)(x)."
        )
    if isinstance(covariance, DiagLinearOperator):
        return "Leave out add_jitter and add_diagonal: what is on the diagonal belongs to the likelihood's noise."
    return "Return MultivariateNormal(mean, kernel(x)) from the model's forward, without evaluating the kernel."


def _require_square(lazy: LazyEvaluatedKernelTensor) -> None:
    if lazy.x1 is not lazy.x2 and not torch.equal(lazy.x1, lazy.x2):
        raise UnsupportedModelError("Expected a covariance of one set of points with itself, K(X, X).")
    if lazy.last_dim_is_batch:
        raise UnsupportedModelError(
            "last_dim_is_batch=True is not supported: write additive structure as "
            "kernel(x.mT.unsqueeze(-1)).sum(-3) with a kernel of batch_shape [d]."
        )


def _read_lazy(lazy: LazyEvaluatedKernelTensor, dtype: torch.dtype | None) -> KernelForm:
    _require_square(lazy)
    if lazy.dim() != 2:
        raise UnsupportedModelError(
            f"The model's covariance has shape {tuple(lazy.shape)}. Batches of models are not supported: "
            "train one model at a time."
        )
    select = _selecting(_same, lazy.kernel.active_dims)
    return _read_selected(
        lazy.kernel, lazy.x1, select, dtype or _working_dtype(lazy.kernel, lazy.x1), dict(lazy.params)
    )
