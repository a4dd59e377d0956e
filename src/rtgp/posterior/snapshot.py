"""Whether a model is still what it was: every tensor it is made of, compared by value.

By value, because GPyTorch's own setters (kernel.lengthscale = 2) write through `.data`, which leaves no trace in
PyTorch's version counters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtgp.objectives.reading import tensors_of


class Snapshot:
    """Copies of the parameters, buffers, training data and noise of a model and its likelihood."""

    def __init__(self, model: torch.nn.Module, likelihood: torch.nn.Module) -> None:
        self._tensors = {name: t.detach().clone() for name, t in tensors_of(model, likelihood)}

    def matches(self, model: torch.nn.Module, likelihood: torch.nn.Module) -> bool:
        now = dict(tensors_of(model, likelihood))
        return now.keys() == self._tensors.keys() and all(_same(now[k], t) for k, t in self._tensors.items())


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    # Second: NaN (an unset buffer, say) is the same as NaN.
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
