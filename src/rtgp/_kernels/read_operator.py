"""Reads a covariance that is a `LinearOperator` of known structure, once its kernels have been evaluated."""

from __future__ import annotations

import torch
from linear_operator import to_linear_operator
from linear_operator.operators import (
    AddedDiagLinearOperator,
    ConstantMulLinearOperator,
    DenseLinearOperator,
    DiagLinearOperator,
    IdentityLinearOperator,
    LinearOperator,
    RootLinearOperator,
    SumLinearOperator,
    ZeroLinearOperator,
)
from torch import Tensor

from rtgp._kernels.composites import Scaled, Sum
from rtgp._kernels.form import KernelForm
from rtgp._kernels.positions import Diagonal
from rtgp._kernels.structured import Evaluated, LowRank, Structured
from rtgp.errors import UnsupportedModelError

Position = tuple[int, ...]  # of one model in a batch


def picked(tensor: Tensor, at: Position | None, trailing: int) -> Tensor:
    """What belongs to one of a batch: tensor (*batch, *trailing dimensions), whose batch shape may be shorter, or 1
    where all share it."""
    lead = tensor.shape[: tensor.ndim - trailing]
    return tensor[_index(lead, at)] if lead else tensor


def picked_operator(operator: LinearOperator, at: Position | None) -> LinearOperator:
    """The same of an operator (*batch, n, n)."""
    lead = operator.batch_shape
    if not lead:
        return operator
    return to_linear_operator(operator[(*_index(lead, at), slice(None), slice(None))])


def _index(lead: torch.Size, at: Position | None) -> Position:
    if at is None or len(at) < len(lead):
        if lead.numel() == 1:
            return (0,) * len(lead)
        raise UnsupportedModelError(
            f"Expected one kernel. Got a batch of them, of shape {tuple(lead)}, where the model's output is not one."
        )
    return tuple(0 if size == 1 else place for size, place in zip(lead, at[len(at) - len(lead) :], strict=True))


def read_operator(operator: LinearOperator) -> KernelForm:
    """The form of an operator (n, n) without kernels that are still to be evaluated."""
    if isinstance(operator, (DiagLinearOperator, IdentityLinearOperator)):
        return Diagonal(operator.diagonal(dim1=-1, dim2=-2), operator.dtype)
    if isinstance(operator, (SumLinearOperator, AddedDiagLinearOperator)):
        parts = [part for part in operator.linear_ops if not isinstance(part, ZeroLinearOperator)]
        return Sum([read_operator(part) for part in parts])
    if isinstance(operator, ConstantMulLinearOperator):
        return Scaled(operator._constant, read_operator(operator.base_linear_op))
    if isinstance(operator, DenseLinearOperator):
        return Evaluated(operator.tensor)
    if isinstance(operator, RootLinearOperator):
        return LowRank(operator.root.to_dense())
    return Structured(operator)
