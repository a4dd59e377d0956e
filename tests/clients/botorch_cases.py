"""BoTorch models for the tests of what rtgp does for them, and a watch for matrices of n x n."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BOUNDS = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
TIGHT = 1e-9


def function(X: Tensor) -> Tensor:
    """A maximum of 50 at 0.4 in all inputs."""
    return 50.0 - 80.0 * ((X - 0.4) ** 2).sum(-1, keepdim=True) + 3.0 * torch.cos(9 * (X - 0.4)).sum(-1, keepdim=True)


def data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    return X, function(X) + 0.5 * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def new_model(n: int = 60, **settings: Any) -> SingleTaskGP:
    """With hyperparameters that suit, not trained."""
    X, Y = data(n)
    model = SingleTaskGP(X, Y, **{"input_transform": Normalize(3), **settings})
    with torch.no_grad():
        model.covar_module.lengthscale = 0.5
        if "train_Yvar" not in settings:
            model.likelihood.noise = 1e-2
    return model


def points(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class _Watch(TorchDispatchMode):
    """Notes the operations that factor or solve a matrix of at least n x n, and tensors of as many numbers."""

    WORDS = ("cholesky", "triangular", "eig", "svd", "qr", "lu_", "inv", "solve")

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.factors, self.large = n, set(), set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = str(func)
        given = [one for one in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        made = [one for one in torch.utils._pytree.tree_leaves(found) if isinstance(one, Tensor)]
        if any(word in name for word in self.WORDS):
            self.factors |= {name for one in given if one.ndim >= 2 and min(one.shape[-2:]) >= self.n}
        self.large |= {name for one in made if one.ndim >= 2 and min(one.shape[-2:]) >= self.n}
        return found


@contextmanager
def watched(n: int) -> Iterator[_Watch]:
    with _Watch(n) as watch:
        yield watch
