"""Which operator "auto" takes, and why."""

from __future__ import annotations

import logging
from dataclasses import replace

import gpytorch
import pytest
import torch

from rtgp._kernels import KernelForm, read_kernel
from rtgp.errors import SettingError
from rtgp.operators import DenseOperator, TiledOperator, TritonOperator, choose, make, make_from_form
from rtgp.operators import _choose as choose_module
from rtgp.operators._choose import free_memory
from rtgp.operators._gpu import availability

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
    with pytest.raises(SettingError, match="'auto', 'dense', 'tiled', 'triton'"):
        choose(form(), name)
    with pytest.raises(SettingError):
        make(gpytorch.kernels.RBFKernel(), torch.zeros(3, 1), name)


def test_free_memory_is_plausible() -> None:
    """Between what this test surely has and what no machine has; file caches count as free."""
    assert 2**26 < free_memory(torch.device("cpu")) < 2**50


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Triton and a new card were here."""
    monkeypatch.setattr(availability, "importable", lambda: True)
    monkeypatch.setattr(availability, "_too_old", lambda device: None)


def on_card(n: int = N, d: int = 2, dtype: torch.dtype = torch.float32) -> KernelForm:
    """A form that says it is on a card; nothing is computed with it."""
    result = read_kernel(gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()), torch.zeros(n, d), dtype)
    result.device = torch.device("cuda", 0)
    return result


@pytest.mark.usefixtures("card")
def test_auto_on_a_card() -> None:
    plenty = 2**40
    assert choose(on_card(), available=plenty).operator == "dense"
    assert choose(on_card(), available=0).operator == "triton"
    assert choose(on_card(20_000), available=plenty).operator == "dense"
    assert "half of K needs 0.76 GiB" in choose(on_card(20_000), available=plenty).reason
    assert "; K needs 2.98 GiB" in "; " + choose(on_card(20_000, dtype=torch.float64), available=plenty).reason
    assert choose(on_card(20_000, d=40), available=0).operator == "triton"
    assert choose(on_card(20_000, d=129), available=0).operator == "tiled"
    assert choose(on_card(20_000, dtype=torch.float64), available=0).operator == "tiled"
    assert choose(form(), available=0).operator == "tiled"  # on the CPU nothing changes


@pytest.mark.usefixtures("card")
def test_out_of_memory_falls_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where storing K fails although it should have fitted, the next operator takes its place, and says so."""

    def full(form: KernelForm, tile: int, negligible: float) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(choose_module._OPERATORS, "dense", full)
    monkeypatch.setitem(choose_module._OPERATORS, "triton", lambda form, tile, negligible: "the fused operator")
    monkeypatch.setattr(choose_module, "free_memory", lambda device: 2**40)
    with caplog.at_level(logging.WARNING, logger="rtgp"):
        assert choose_module.make_from_form(on_card()) == "the fused operator"
    assert "no memory left to store K(X, X)" in caplog.text
    with pytest.raises(torch.OutOfMemoryError):
        choose_module.make_from_form(on_card(), "dense")


@pytest.mark.usefixtures("card")
def test_less_memory_may_be_reckoned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a few products K is not stored, however large the card is."""
    for name in ("dense", "triton", "tiled"):
        monkeypatch.setitem(choose_module._OPERATORS, name, lambda form, tile, negligible, name=name: name)
    monkeypatch.setattr(choose_module, "free_memory", lambda device: 2**37)
    many, wide = on_card(105_569), on_card(105_569, dtype=torch.float64)
    assert [choose_module.make_from_form(one) for one in (many, wide)] == ["dense", "tiled"]
    assert choose_module.make_from_form(on_card(90_000, dtype=torch.float64)) == "dense"
    assert choose_module.make_from_form(on_card(90_000, dtype=torch.float64), most_on_card=24 * 2**30) == "tiled"
    assert choose_module.make_from_form(many, most_on_card=24 * 2**30) == "triton"
    assert choose_module.make_from_form(on_card(40_000), most_on_card=24 * 2**30) == "dense"


def test_a_fallback_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(availability, "importable", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    availability._too_old.cache_clear()
    with caplog.at_level(logging.WARNING, logger="rtgp"):
        choices = [choose(on_card(), available=0) for _ in range(3)]
    availability._too_old.cache_clear()
    assert {choice.operator for choice in choices} == {"tiled"}
    assert "compute capability 7.5, below 8.0" in choices[0].reason
    assert [record.name for record in caplog.records] == ["rtgp"]
    assert "compute capability 7.5" in caplog.text


@pytest.mark.usefixtures("card")
def test_reasons_against_the_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    supported = availability.supported
    assert supported(on_card()) is None
    assert supported(form()) == "the data is on cpu, not on a CUDA device"
    assert "float64" in supported(on_card(dtype=torch.float64))
    assert supported(on_card(d=129)) == "there are 129 inputs"
    other = on_card()
    leaf = availability.stationary(other)
    assert leaf is not None
    monkeypatch.setattr(leaf, "formula", replace(leaf.formula, name="wave"))
    assert supported(other) == "the fused kernels have no formula of 'wave'"
    both = gpytorch.kernels.RBFKernel() + gpytorch.kernels.MaternKernel()
    assert "not a single RBF or Matern kernel" in supported(read_kernel(both, torch.zeros(3, 1)))
    monkeypatch.setattr(availability, "importable", lambda: False)
    assert supported(on_card()) == "Triton is not installed"


def test_triton_asked_for_and_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(availability, "importable", lambda: False)
    words = r"supports RBF and Matern 1/2, 3/2, 5/2.*float32.*CUDA.*Here Triton is not installed.*'auto', 'dense'"
    with pytest.raises(SettingError, match=words):
        choose(form(), "triton")
    with pytest.raises(SettingError, match="Triton is not installed"):
        make(gpytorch.kernels.RBFKernel(), torch.zeros(3, 1), "triton")
    with pytest.raises(SettingError, match="Triton is not installed"):
        TritonOperator(form())
