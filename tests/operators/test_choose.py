"""Which operator "auto" takes, and why."""

from __future__ import annotations

import gpytorch
import pytest
import torch

from rtgp.errors import SettingError
from rtgp.kernels import KernelForm, read_kernel
from rtgp.operators import DenseOperator, TiledOperator, choose, make, make_from_form
from rtgp.operators.choose import free_memory

N = 1000


def form(dtype: torch.dtype = torch.float32) -> KernelForm:
    x = torch.randn(N, 2, generator=torch.Generator().manual_seed(0))
    return read_kernel(gpytorch.kernels.RBFKernel(), x, dtype)


@pytest.mark.parametrize("dtype, size", [(torch.float32, 4), (torch.float64, 8)])
def test_auto_goes_by_memory(dtype: torch.dtype, size: int) -> None:
    needed = size * N**2
    assert choose(form(dtype), available=4 * needed).operator == "dense"
    assert choose(form(dtype), available=needed).operator == "tiled"  # the solver needs some of it too
    assert choose(form(dtype), available=0).operator == "tiled"


def test_the_reason_is_in_words() -> None:
    choice = choose(form(), available=2**30)
    assert "0.00 GiB" in choice.reason
    assert "0.60 GiB may be used on cpu" in choice.reason
    assert choose(form(), "tiled", available=2**40).reason == "asked for"


def test_a_name_is_followed_whatever_the_memory() -> None:
    assert choose(form(), "dense", available=0).operator == "dense"
    assert isinstance(make_from_form(form(), "dense"), DenseOperator)
    assert isinstance(make_from_form(form(), "tiled"), TiledOperator)
    x = torch.zeros(3, 1)
    assert isinstance(make(gpytorch.kernels.RBFKernel(), x), DenseOperator)
    assert isinstance(make(gpytorch.kernels.RBFKernel(), x, "tiled"), TiledOperator)


@pytest.mark.parametrize("name", ["sparse", "Dense", "", None, 3])
def test_unknown_names(name: str) -> None:
    with pytest.raises(SettingError, match="'auto', 'dense', 'tiled'"):
        choose(form(), name)
    with pytest.raises(SettingError):
        make(gpytorch.kernels.RBFKernel(), torch.zeros(3, 1), name)


def test_free_memory_is_plausible() -> None:
    """Between what this test surely has and what no machine has; file caches count as free."""
    assert 2**26 < free_memory(torch.device("cpu")) < 2**50
