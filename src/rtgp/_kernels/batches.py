"""Many small covariance matrices at once, K[index_b, index_b] for each row of an index, differentiable by autograd.

A `KernelForm` evaluates blocks one at a time and keeps no tape, which is right for large blocks. Thousands of blocks of
a few points each are another matter: here they are one batch, small enough for a tape.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rtgp._kernels.composites import Product, Scaled, Sum
from rtgp._kernels.form import KernelForm
from rtgp._kernels.formulas import RadialFormula
from rtgp._kernels.generic import Generic
from rtgp._kernels.positions import At
from rtgp._kernels.stationary import Stationary
from rtgp.errors import UnsupportedModelError


def small_blocks(form: KernelForm, index: Tensor) -> Tensor:
    """K[index_b, index_b] for the rows of index (b, k), (b, k, k) in float64, with autograd history."""
    if isinstance(form, Scaled):
        return form.scale.double() * small_blocks(form.form, index)
    if isinstance(form, Sum):
        return torch.stack([small_blocks(part, index) for part in form.forms]).sum(0)
    if isinstance(form, Product):
        return math.prod((small_blocks(part, index) for part in form.forms), start=torch.ones((), dtype=torch.float64))
    if isinstance(form, Stationary):
        z = form.z[index]  # (b, k, d)
        centred = z - z.detach().mean(1, keepdim=True)
        blocks: Tensor = _Radial.apply(centred, form.formula)  # type: ignore[no-untyped-call]
        return blocks
    if isinstance(form, At):
        return small_blocks(form.form, form.index[index])
    x = inputs_of(form)[index]
    assert isinstance(form, Generic)
    values: Tensor = form.evaluate(x, x)
    return values.double()


def inputs_of(form: KernelForm) -> Tensor:
    """The points (n, d) that the first kernel of the form sees, in its own units."""
    if isinstance(form, Scaled):
        return inputs_of(form.form)
    if isinstance(form, (Sum, Product)):
        # The part that sees the most columns: of a sum over groups of inputs, one alone says little of who is near.
        return max((inputs_of(part) for part in form.forms), key=lambda x: x.shape[1])
    if isinstance(form, At):
        return inputs_of(form.form)[form.index]
    if not isinstance(form, (Stationary, Generic)):
        raise UnsupportedModelError(
            "Expected a kernel of one value for each pair of points, evaluated on many small sets at once. "
            f"Got {getattr(form, 'words', type(form).__name__)}. Use another method, such as rtgp.RRCG()."
        )
    if form.x.ndim != 2:
        raise UnsupportedModelError(
            f"Expected a kernel of one set of points. Got inputs of shape {tuple(form.x.shape)}: a kernel summed over "
            "a batch cannot be evaluated on many small sets at once. Use another method, such as rtgp.RRCG()."
        )
    return form.x


class _Radial(torch.autograd.Function):
    """k(|z_i - z_j|^2) within each set of z (b, k, d)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, formula: RadialFormula) -> Tensor:
        squared = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square_()
        ctx.save_for_backward(z, squared)
        ctx.formula = formula
        return formula.value(squared.clone())  # formulas may overwrite their argument

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[Tensor, None]:
        z, squared = ctx.saved_tensors
        h = ctx.formula.slope(squared.clone()) * weights[0]
        h = h + h.mT
        # dz_i = sum_j 2 (H_ij + H_ji) (z_i - z_j)
        return 2.0 * (h.sum(-1, keepdim=True) * z - h @ z), None
