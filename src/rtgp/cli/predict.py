"""rtgp predict: a model folder and a table in, predictions out."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

import numpy as np
import typer

from rtgp.cli import options
from rtgp.cli.files import check_file_output, read_fit_record, read_inputs
from rtgp.cli.terminal import say
from rtgp.errors import SettingError
from rtgp.regressor import GPRegressor
from rtgp.report.files import write_text

SUFFIXES = (".csv", ".txt")


def predict(
    model: Annotated[Path, typer.Argument(help="Folder written by `rtgp fit`.")],
    data: Annotated[str, typer.Argument(help="Table with the model's input columns; others are left out.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.csv", help="Where to write; by default the standard output."),
    ] = None,
    std: Annotated[bool, typer.Option("--std", help="Add the standard deviation of each prediction.")] = False,
    interval: Annotated[
        float | None, typer.Option(metavar="P", help="Add the ends of the central interval of probability P, as 0.9.")
    ] = None,
    latent: Annotated[
        bool, typer.Option("--latent", help="Uncertainty of the function alone, without the noise of a measurement.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:0; by default as the model was trained.")
    ] = None,
    header: options.Header = None,
) -> None:
    """Predict the target for every row of a table: one row out for each row in, in order.

    [bold]Examples[/bold]

    \b
    rtgp predict model/ new.csv --output prices.csv
    rtgp predict model/ new.csv --output prices.csv --std --interval 0.9
    """
    if interval is not None and not 0.0 < interval < 1.0:
        raise SettingError(f"The option --interval must be a probability between 0 and 1. Got {interval}.")
    if output is not None:
        if output.suffix.lower() not in SUFFIXES:
            raise SettingError(f"The output must be a {' or '.join(SUFFIXES)} file. Got {output.name!r}.")
        check_file_output(output)
    regressor = GPRegressor.load(model, device)
    features = [str(name) for name in regressor.feature_names_in_]
    frame = read_inputs(data, features, read_fit_record(model).get("target"), header)
    columns = {}
    if std or interval is not None:
        mean, deviation = regressor.predict(frame, return_std=True, include_noise=not latent)
        columns["mean"] = mean
        if std:
            columns["std"] = deviation
        if interval is not None:
            half = NormalDist().inv_cdf(0.5 + interval / 2)
            columns["lower"], columns["upper"] = mean - half * deviation, mean + half * deviation
    else:
        columns["mean"] = regressor.predict(frame)
    text = _csv(columns)
    if output is None:
        typer.echo(text, nl=False)
        return
    write_text(output, text)
    say(f"{len(frame)} predictions written to {output}.")


def _csv(columns: dict[str, np.ndarray]) -> str:
    """Comma-separated, to the last bit."""
    buffer = io.StringIO()
    buffer.write(",".join(columns) + "\n")
    for row in zip(*(np.asarray(column, dtype=np.float64).tolist() for column in columns.values()), strict=True):
        buffer.write(",".join(map(repr, row)) + "\n")
    return buffer.getvalue()
