"""How much the rounding errors of a kernel matrix have in common.

Rounding errors of n x n entries that differ make a matrix of norm about sqrt(n). Where all points are alike to the
kernel, its entries are nearly one number: the errors are alike too, they add up to n, and products with the matrix are
small differences of large sums.
"""

from __future__ import annotations

import math

import torch

from rtgp.kernels.forms import KernelForm

_SAMPLE = 128
_ALIKE = 0.99  # mean correlation: lengthscales of about five times the range of the inputs
# In float32, of lengthscales of 10 to 1000 times the range: a rounding of 0.05 with this was an error of 0.01 at most.
_FACTOR = 10.0


def common_rounding(form: KernelForm) -> float:
    """By what factor the norm of the rounding errors exceeds that of independent ones."""
    index = torch.arange(min(_SAMPLE, form.size), device=form.device) * form.size // min(_SAMPLE, form.size)
    block = form.block(index, index).double()
    scale = block.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    correlation = float((block * scale * scale[:, None]).mean())
    return _FACTOR * math.sqrt(form.size) if form.size > 1 and correlation > _ALIKE else 1.0


def size_of_entries(form: KernelForm) -> float:
    """The root mean square of K's entries, to the mean of its diagonal, by a sample: what rounding is in proportion to.
    1 where all points are alike; far less where most pairs are apart."""
    n, count = form.size, min(_SAMPLE, form.size)
    index = torch.arange(count, device=form.device) * n // count
    block = form.block(index, index).double()
    diagonal = block.diagonal()
    mean, own = float(diagonal.mean()), float(diagonal.square().mean())
    if mean <= 0.0:
        return 1.0
    others = float((block.square().sum() - diagonal.square().sum()) / max(1, count * (count - 1)))
    return math.sqrt((others * (n - 1) + own) / n) / mean
