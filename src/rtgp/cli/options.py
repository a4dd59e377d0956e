"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rtgp.cli.terminal import on_terminal
from rtgp.errors import SettingError
from rtgp.methods import METHODS

KERNELS = ("rbf", "matern12", "matern32", "matern52")
METHOD_NAMES = ("auto", *METHODS)
DTYPES = ("float32", "float64")

Data = Annotated[
    str,
    typer.Argument(help="Table of numbers: .csv, .csv.gz, .txt, .parquet or .npz; or the name of a known data set."),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        help="Column to predict: its name, or its number from 1 in a file without header. All others are inputs.",
    ),
]
Kernel = Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(KERNELS)}; one lengthscale per input.")]
Method = Annotated[
    str,
    typer.Option(
        metavar="NAME", help=f"One of {', '.join(METHOD_NAMES)}. auto: Cholesky where that is cheaper, rr-cg beyond."
    ),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Most steps of training; by default as many as it needs.")]
LearningRate = Annotated[float | None, typer.Option(help="First step size; by default chosen by the method.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random draw: the same seed gives the same result.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:0.")]
Dtype = Annotated[str, typer.Option(metavar="NAME", help=f"{' or '.join(DTYPES)}.")]
Standardize = Annotated[
    bool, typer.Option("--standardize/--no-standardize", help="Give every column mean 0 and standard deviation 1.")
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether the first line of a CSV names the columns; by default told."),
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where the files of named data sets are; else RTGP_DATA.")
]
Report = Annotated[
    Path | None, typer.Option(metavar="FILE.html", help="Write a report of the training and the predictions.")
]


def regressor_settings(
    kernel: str,
    steps: int | None,
    learning_rate: float | None,
    seed: int,
    device: str,
    dtype: str,
    standardize: bool = True,
) -> dict[str, Any]:
    """Arguments of GPRegressor, checked by name before any file is read."""
    check_choice("kernel", kernel, KERNELS)
    check_choice("dtype", dtype, DTYPES)
    if learning_rate is not None and not 0.0 < learning_rate < float("inf"):
        raise SettingError(f"The option --learning-rate must be positive and finite. Got {learning_rate}.")
    return {
        "kernel": kernel,
        "steps": steps,
        "learning_rate": learning_rate,
        "device": device,
        "dtype": dtype,
        "standardize": standardize,
        "random_state": seed,
        "verbose": on_terminal(),
    }


def check_choice(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise SettingError(f"The option --{option} must be one of {', '.join(allowed)}. Got {value!r}.")
    return value
