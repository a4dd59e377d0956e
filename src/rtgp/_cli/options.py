"""Options that several commands share."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import typer

from rtgp._cli.help import MODEL, READING, RESULT, TABLE
from rtgp._cli.terminal import on_terminal
from rtgp._estimator.kernel_words import WORDS
from rtgp._estimator.model import check_kernel_setting
from rtgp._methods import METHODS
from rtgp._precision import DTYPES as _DTYPES
from rtgp.errors import SettingError
from rtgp.tables import TableSettings
from rtgp.tables._preparing import GAPS

METHOD_NAMES = ("auto", *METHODS)
DTYPES = tuple(_DTYPES)

Data = Annotated[
    str,
    typer.Argument(help="Table: .csv, .tsv, .txt (or .gz), .parquet or .npz; or the name of a known data set."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--inputs",
        metavar="NAMES",
        help="Columns to learn from, commas between; by default all useful.",
        rich_help_panel=TABLE,
    ),
]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", metavar="NAMES", help="Columns to leave out.", rich_help_panel=TABLE)
]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="NAMES",
        help="Columns that name the rows: no inputs, kept beside the predictions.",
        rich_help_panel=TABLE,
    ),
]
Categories = Annotated[
    list[str] | None,
    typer.Option(
        "--categories",
        metavar="NAMES",
        help="Columns to take for categories though they hold numbers.",
        rich_help_panel=READING,
    ),
]
DateFormat = Annotated[
    str | None,
    typer.Option(
        "--date-format",
        metavar="FORMAT",
        help="How dates are written, as '%d/%m/%Y'; else detected.",
        rich_help_panel=READING,
    ),
]
Gaps = Annotated[
    str,
    typer.Option(
        "--gaps",
        metavar="HOW",
        help="impute: fill gaps and mark them. drop: leave their rows out.",
        rich_help_panel=READING,
    ),
]
Preprocess = Annotated[
    str,
    typer.Option(
        "--preprocess",
        metavar="HOW",
        help="auto: make numbers of categories, dates and gaps. none: refuse anything but numbers.",
        rich_help_panel=READING,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="SIGN",
        help="Between cells: comma, semicolon, tab, pipe; else detected.",
        rich_help_panel=READING,
    ),
]
Decimal = Annotated[
    str | None,
    typer.Option(
        "--decimal", metavar="SIGN", help="Before a fraction: '.' or ','; else detected.", rich_help_panel=READING
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on the standard output, for scripts.", rich_help_panel=RESULT)
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        help="Column to predict: its name, or its number from 1 in a file without header; else the last.",
        rich_help_panel=TABLE,
    ),
]
Kernel = Annotated[
    str,
    typer.Option(
        metavar="KERNEL",
        help=f"{', '.join(WORDS)}; or some of them with + and *, each with its columns in brackets: "
        "'rbf + periodic(day)'.",
        rich_help_panel=MODEL,
    ),
]
Method = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"One of {', '.join(METHOD_NAMES)}. auto: Cholesky where that is cheaper, rr-cg beyond.",
        rich_help_panel=MODEL,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Most steps of training; by default as many as it needs.", rich_help_panel=MODEL
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="First step size; by default chosen by the method.", rich_help_panel=MODEL),
]
Seed = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Seed of every random draw: the same seed gives the same result.",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:0.", rich_help_panel=MODEL)]
Dtype = Annotated[str, typer.Option(metavar="NAME", help=f"{' or '.join(DTYPES)}.", rich_help_panel=MODEL)]
Standardize = Annotated[
    bool,
    typer.Option(
        "--standardize/--no-standardize",
        help="Give every column mean 0 and standard deviation 1 (on by default).",
        rich_help_panel=MODEL,
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header", help="Whether the first line names the columns; else detected.", rich_help_panel=READING
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where the files of named data sets are; else RTGP_DATA.", rich_help_panel=READING
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html", help="Write a report of the training and the predictions.", rich_help_panel=RESULT
    ),
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
    check_kernel_setting(kernel)
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


def table_settings(
    inputs: list[str] | None,
    drop: list[str] | None,
    preprocess: str,
    ids: list[str] | None = None,
    categories: list[str] | None = None,
    date_format: str | None = None,
    gaps: str = "impute",
) -> TableSettings:
    """What the options say of the columns of a table."""
    check_choice("preprocess", preprocess, ("auto", "none"))
    check_choice("gaps", gaps, GAPS)
    return TableSettings(
        inputs=names_in(inputs) or None,
        drop=names_in(drop),
        ids=names_in(ids),
        categories=names_in(categories),
        date_format=date_format,
        gaps=gaps,
        encode=preprocess == "auto",
    )


def names_in(given: list[str] | None) -> tuple[str, ...]:
    """Names of columns with commas between; a name that holds a comma stands in quotes."""
    return tuple(name for text in given or () for row in csv.reader([text], skipinitialspace=True)
                 for name in (cell.strip() for cell in row) if name)  # fmt: skip


def check_choice(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise SettingError(f"The option --{option} must be one of {', '.join(allowed)}. Got {value!r}.")
    return value
