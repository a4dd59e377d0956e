"""A tree of dicts, lists, numbers and tensors as JSON plus named tensors, and back: no pickle."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rtgp.training._errors import CheckpointError


def pack(tree: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The tree with every tensor moved into `tensors` and everything else as JSON can hold it, without loss."""
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach().cpu().clone().contiguous()
        return {"tensor": path, "device": str(tree.device)}
    if isinstance(tree, dict):
        # As pairs: the keys of an optimiser's state are integers, which JSON would turn into strings.
        return {"dict": [[key, pack(value, tensors, f"{path}/{key}")] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [pack(value, tensors, f"{path}/{i}") for i, value in enumerate(tree)]}
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"float": repr(tree)}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise CheckpointError(
        f"Expected numbers, strings, tensors, lists and dicts in the state to be saved. Got {type(tree).__name__} at "
        f"'{path}': train without a checkpoint, or with an optimiser whose state_dict() holds such values only."
    )


def unpack(packed: Any, tensors: dict[str, Tensor], card: torch.device | None = None) -> Any:
    """The inverse of `pack`. What was on a card goes to the given one, if one is given."""
    if not isinstance(packed, dict):
        return packed
    (kind,) = [key for key in packed if key != "device"]
    body = packed[kind]
    if kind == "tensor":
        # A copy: memory that came from a file may be aligned otherwise, which may change the last bit of a product.
        device = torch.device(packed["device"])
        return tensors[body].clone().to(device if card is None or device.type == "cpu" else card)
    if kind == "dict":
        return {key: unpack(value, tensors, card) for key, value in body}
    if kind == "float":
        return float(body)
    values = [unpack(value, tensors, card) for value in body]
    return tuple(values) if kind == "tuple" else values
