"""Reads the covariance of a model's output into a `KernelForm`: kernels that are lazily evaluated, and what GPyTorch
and `linear_operator` make of such.

A batch of covariances is read one at a time: `at` says which.
"""

from __future__ import annotations

import torch
from gpytorch.lazy import LazyEvaluatedKernelTensor
from linear_operator.operators import (
    BlockDiagLinearOperator,
    BlockInterleavedLinearOperator,
    CatLinearOperator,
    ConstantMulLinearOperator,
    DenseLinearOperator,
    KroneckerProductDiagLinearOperator,
    KroneckerProductLinearOperator,
    LinearOperator,
    MulLinearOperator,
    PsdSumLinearOperator,
    SumBatchLinearOperator,
    SumLinearOperator,
    ZeroLinearOperator,
)
from torch import Tensor

from rtgp._kernels.composites import Product, Scaled, Sum
from rtgp._kernels.form import KernelForm
from rtgp._kernels.generic import Generic
from rtgp._kernels.gpytorch_kernels import KernelBlock, has_own_points, read_selected, selecting, working_dtype
from rtgp._kernels.positions import At, Blocks, Table
from rtgp._kernels.read_operator import Position, picked, picked_operator, read_operator
from rtgp.errors import UnsupportedModelError

EVALUATED_UP_TO = 10_000  # points up to which a kernel without structure is evaluated whole, where nothing else will do


def read_covariance(
    covariance: LinearOperator | Tensor, dtype: torch.dtype | None = None, at: Position | None = None
) -> KernelForm:
    """The form behind the covariance of `model(train_x)`. at: of which model, where the output is a batch."""
    if isinstance(covariance, Tensor):
        covariance = DenseLinearOperator(covariance)
    if isinstance(covariance, LazyEvaluatedKernelTensor):
        return _read_lazy(covariance, dtype, at)
    if isinstance(covariance, (SumLinearOperator, PsdSumLinearOperator)):
        parts = [part for part in covariance.linear_ops if not isinstance(part, ZeroLinearOperator)]
        return Sum([read_covariance(part, dtype, at) for part in parts])
    if isinstance(covariance, ConstantMulLinearOperator):
        constant = picked(covariance._constant, at, 0).reshape(())
        return Scaled(constant, read_covariance(covariance.base_linear_op, dtype, at))
    if isinstance(covariance, MulLinearOperator):
        return Product([read_covariance(part, dtype, at) for part in covariance._args])
    if isinstance(covariance, SumBatchLinearOperator):
        return _read_batch_sum(covariance, dtype, at)
    if isinstance(covariance, KroneckerProductLinearOperator) and not isinstance(
        covariance, KroneckerProductDiagLinearOperator
    ):
        return _read_kronecker(covariance, dtype, at)
    if isinstance(covariance, (BlockDiagLinearOperator, BlockInterleavedLinearOperator)):
        return _read_blocks(covariance, dtype, at)
    if isinstance(covariance, CatLinearOperator) and covariance.cat_dim == -3:
        return _read_stacked(covariance, dtype, at)
    return read_operator(picked_operator(_evaluated(covariance), at))


def _read_lazy(lazy: LazyEvaluatedKernelTensor, dtype: torch.dtype | None, at: Position | None) -> KernelForm:
    _require_square(lazy)
    if lazy.last_dim_is_batch or (at is not None and has_own_points(lazy.kernel)):  # points that all of a batch share
        return read_operator(picked_operator(_evaluated(lazy), at))
    x, kernel = picked(lazy.x1, at, 2), lazy.kernel
    select = selecting(lambda x: x, kernel.active_dims)
    return read_selected(kernel, x, select, dtype or working_dtype(kernel, x), dict(lazy.params), at)


def _require_square(lazy: LazyEvaluatedKernelTensor) -> None:
    if lazy.x1 is not lazy.x2 and not torch.equal(lazy.x1, lazy.x2):
        raise UnsupportedModelError("Expected a covariance of one set of points with itself, K(X, X).")


def _read_batch_sum(covariance: SumBatchLinearOperator, dtype: torch.dtype | None, at: Position | None) -> KernelForm:
    """Additive structure, kernel(x.mT.unsqueeze(-1)).sum(-3): a batch of kernels, summed."""
    base = covariance.base_linear_op  # summed over its last batch dimension, -3
    if isinstance(base, ConstantMulLinearOperator) and base._constant.numel() == 1:  # linear_operator moves it inside
        inner = _read_batch_sum(SumBatchLinearOperator(base.base_linear_op), dtype, at)
        return Scaled(base._constant.reshape(()), inner)
    if isinstance(base, LazyEvaluatedKernelTensor) and base.dim() == 3 and not base.last_dim_is_batch:
        _require_square(base)
        block = KernelBlock(base.kernel, True, dict(base.params))
        return Generic(block, base.x1, lambda x: x, dtype or working_dtype(base.kernel, base.x1))
    if isinstance(base, LazyEvaluatedKernelTensor) and base.last_dim_is_batch:
        return read_operator(picked_operator(_evaluated(covariance), at))
    count = base.size(-3)
    return Sum([read_covariance(base, dtype, (*(at or ()), k)) for k in range(count)])


def _read_kronecker(
    covariance: KroneckerProductLinearOperator, dtype: torch.dtype | None, at: Position | None
) -> KernelForm:
    """A kron B kron ...: the product of its factors, each at the positions that a row has in it."""
    factors = covariance.linear_ops
    row = torch.arange(covariance.shape[-1], device=covariance.device)
    forms: list[KernelForm] = []
    after = covariance.shape[-1]
    for factor in factors:
        size = factor.shape[-1]
        after //= size
        position = (row // after) % size
        if isinstance(factor, LazyEvaluatedKernelTensor) or size * size > len(row):
            forms.append(At(read_covariance(factor, dtype, at), position))
        else:
            forms.append(Table(picked(factor.to_dense(), at, 2), position, dtype or factor.dtype))
    return Product(forms)


def _read_blocks(
    covariance: BlockDiagLinearOperator | BlockInterleavedLinearOperator, dtype: torch.dtype | None, at: Position | None
) -> KernelForm:
    """Independent outputs: one after the other, or those of a point side by side."""
    base = covariance.base_linear_op
    count, n = base.size(-3), base.size(-1)
    row = torch.arange(count * n, device=covariance.device)
    if isinstance(covariance, BlockDiagLinearOperator):
        which, place = row // n, row % n
    else:
        which, place = row % count, row // count
    return Blocks([read_covariance(base, dtype, (*(at or ()), k)) for k in range(count)], which, place)


def _read_stacked(covariance: CatLinearOperator, dtype: torch.dtype | None, at: Position | None) -> KernelForm:
    """One of several covariances that have been put on top of each other, as independent outputs are."""
    assert at is not None
    place = at[-1]
    for part in covariance.linear_ops:
        count = part.size(-3)
        if place < count:
            return read_covariance(part, dtype, (*at[:-1], place))
        place -= count
    raise AssertionError


def _evaluated(covariance: LinearOperator) -> LinearOperator:
    """The operator with its kernels evaluated, as GPyTorch's own likelihood does before it computes."""
    kernels = _kernels_in(covariance)
    if any(not has_own_points(lazy.kernel) for lazy in kernels) and covariance.shape[-1] > EVALUATED_UP_TO:
        names = ", ".join(sorted({type(lazy.kernel).__name__ for lazy in kernels}))
        raise UnsupportedModelError(
            f"Expected a covariance whose entries can be computed tile by tile. Got a {type(covariance).__name__} of "
            f"{names} on {covariance.shape[-1]:,} rows, which must be evaluated whole, and is up to "
            f"{EVALUATED_UP_TO:,}: return MultivariateNormal(mean, kernel(x)) from the model's forward."
        )
    return covariance.representation_tree()(*covariance.representation()) if kernels else covariance


def _kernels_in(covariance: LinearOperator) -> list[LazyEvaluatedKernelTensor]:
    if isinstance(covariance, LazyEvaluatedKernelTensor):
        return [covariance]
    parts = (*covariance._args, *covariance._kwargs.values())
    return [lazy for part in parts if isinstance(part, LinearOperator) for lazy in _kernels_in(part)]
