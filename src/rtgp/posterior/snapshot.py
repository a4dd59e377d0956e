"""Whether a model is still what it was: every tensor it is made of, compared by value.

By value, because GPyTorch's own setters (kernel.lengthscale = 2) write through `.data`, which leaves no trace in
PyTorch's version counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """Copies of the parameters, buffers, training data and noise of a model and its likelihood."""

    def __init__(self, model: torch.nn.Module, likelihood: torch.nn.Module) -> None:
        self._tensors = {name: t.detach().clone() for name, t in _tensors(model, likelihood)}

    def matches(self, model: torch.nn.Module, likelihood: torch.nn.Module) -> bool:
        now = dict(_tensors(model, likelihood))
        return now.keys() == self._tensors.keys() and all(_same(now[k], t) for k, t in self._tensors.items())


def _tensors(model: Any, likelihood: Any) -> Iterator[tuple[str, Tensor]]:
    for owner, module in (("model", model), ("likelihood", likelihood)):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield f"{owner}.{name}", tensor
    for k, x in enumerate(model.train_inputs or ()):
        yield f"train_inputs[{k}]", x
    if model.train_targets is not None:
        yield "train_targets", model.train_targets
    yield "noise", likelihood.noise  # known noise is neither a parameter nor a buffer


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    # Second: NaN (an unset buffer, say) is the same as NaN.
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
