"""How much the rounding errors of a kernel matrix have in common.

Rounding errors of n x n entries that differ make a matrix of norm about sqrt(n). Where all points are alike to the
kernel, its entries are nearly one number: the errors are alike too, they add up to n, and products with the matrix are
small differences of large sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rtgp._kernels.form import KernelForm

_SAMPLE = 128  # points by which all are judged, by default


def mean_correlation(form: KernelForm, sample: int = _SAMPLE) -> float:
    """The mean correlation among a sample of the points, each with itself included."""
    block = _between_some(form, sample)
    scale = block.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    return float((block * scale * scale[:, None]).mean())


def size_of_entries(form: KernelForm, sample: int = _SAMPLE) -> float:
    """The root mean square of K's entries over the mean of its diagonal, by a sample: rounding is in proportion to it.

    It is 1 where all points are alike, and far less where most pairs are apart.
    """
    block = _between_some(form, sample)
    n, count = form.size, len(block)
    diagonal = block.diagonal()
    mean, own = float(diagonal.mean()), float(diagonal.square().mean())
    if mean <= 0.0:
        return 1.0
    others = float((block.square().sum() - diagonal.square().sum()) / max(1, count * (count - 1)))
    return math.sqrt((others * (n - 1) + own) / n) / mean


def _between_some(form: KernelForm, sample: int) -> Tensor:
    """K between some of the points, evenly spread, in float64."""
    count = min(sample, form.size)
    index = torch.arange(count, device=form.device) * form.size // count
    return form.block(index, index).double()
