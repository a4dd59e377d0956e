"""Hyperparameters are called after the inputs and the kernels that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)

from rtgp._kernels.names import name_inputs, word_for
from rtgp.training._history import hyperparameters, renamed_row

NAMES = ("lat", "lon", "day")


def named(kernel: Kernel, names: Sequence[str] | None = NAMES) -> list[str]:
    name_inputs(kernel, names)
    return list(hyperparameters(torch.nn.ModuleDict({"covar_module": kernel})))


def test_a_lengthscale_is_that_of_its_input() -> None:
    kernel = ScaleKernel(RBFKernel(ard_num_dims=3))
    assert named(kernel) == ["outputscale", "lengthscale[lat]", "lengthscale[lon]", "lengthscale[day]"]
    assert named(ScaleKernel(RBFKernel(ard_num_dims=3)), None)[1:] == [f"lengthscale[{i}]" for i in range(3)]
    assert named(ScaleKernel(RBFKernel())) == ["outputscale", "lengthscale"]  # one for all of them
    assert named(ScaleKernel(RBFKernel()), None) == ["outputscale", "lengthscale[0]"]


def test_columns_that_are_chosen_at_every_level() -> None:
    inner = AdditiveKernel(RBFKernel(active_dims=[1]), MaternKernel(nu=1.5, active_dims=[0]))
    inner.active_dims = torch.tensor([2, 0])  # of the inputs; those of its parts are of what is left
    assert named(inner) == ["rbf.lengthscale[lat]", "matern32.lengthscale[day]"]
    assert named(ScaleKernel(RBFKernel(ard_num_dims=2, active_dims=[2, 0])))[1:] == [
        "lengthscale[day]",
        "lengthscale[lat]",
    ]
    assert named(RBFKernel(active_dims=[2]), None) == ["lengthscale[2]"]


def test_what_several_kernels_have_is_called_after_them() -> None:
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, active_dims=[0, 1])) + ScaleKernel(PeriodicKernel(active_dims=[2]))
    assert named(kernel) == [
        "rbf.outputscale", "rbf.lengthscale[lat]", "rbf.lengthscale[lon]",
        "periodic.outputscale", "periodic.lengthscale[day]", "period_length[day]",
    ]  # fmt: skip


def test_kernels_of_one_kind_are_told_apart() -> None:
    by_inputs = RBFKernel(active_dims=[0]) + RBFKernel(active_dims=[2])
    assert named(by_inputs) == ["rbf(lat).lengthscale[lat]", "rbf(day).lengthscale[day]"]
    by_number = ScaleKernel(RBFKernel()) + ScaleKernel(RBFKernel())
    assert named(by_number) == ["rbf.outputscale", "rbf.lengthscale", "rbf_2.outputscale", "rbf_2.lengthscale"]


@pytest.mark.parametrize(
    "kernel, word",
    [
        (ScaleKernel(MaternKernel(nu=2.5)), "matern52"),
        (ProductKernel(RBFKernel(), LinearKernel()), "(rbf*linear)"),
        (RBFKernel() + CosineKernel(), "(rbf + cosine)"),
        (AdditiveKernel(*[MaternKernel(nu=0.5) for _ in range(9)]), "sum"),
    ],
)
def test_short_names(kernel: Kernel, word: str) -> None:
    assert word_for(kernel) == word


def test_names_are_no_part_of_the_state() -> None:
    kernel = ScaleKernel(RBFKernel())
    before = set(kernel.state_dict())
    name_inputs(kernel, NAMES)
    assert set(kernel.state_dict()) == before


def test_rows_of_an_earlier_version_get_the_names_of_this_one() -> None:
    row = {"step": 0, "loss": 1.0, "seconds": 2.0, "noise": 0.1, "lengthscale[0]": 3.0}
    assert renamed_row(row, ["noise", "lengthscale[lat]"]) == {
        "step": 0, "loss": 1.0, "seconds": 2.0, "noise": 0.1, "lengthscale[lat]": 3.0,
    }  # fmt: skip
    assert renamed_row(row, ["other"]) == row
