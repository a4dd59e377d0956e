"""rtgp predict: a model folder and a table in, predictions out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import typer

from rtgp._cli import options
from rtgp._cli.files import Reading, check_file_output, inputs_of, load_model, read_fit_record, text_columns
from rtgp._cli.help import READING, RESULT
from rtgp._cli.predictions import check_kind
from rtgp._cli.stream import write_pieces
from rtgp._cli.terminal import say, show_json
from rtgp.errors import InputError, SettingError
from rtgp.tables import RawTable
from rtgp.tables._encoder import GAPS as ENCODER_GAPS


def predict(
    model: Annotated[Path, typer.Argument(help="Folder written by `rtgp fit`.")],
    data: Annotated[str, typer.Argument(help="Table with the model's input columns; others are left out.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A .csv, .csv.gz, .tsv or .parquet file; else printed.",
            rich_help_panel=RESULT,
        ),
    ] = None,
    std: Annotated[
        bool, typer.Option("--std", help="Add the standard deviation of each prediction.", rich_help_panel=RESULT)
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Add the ends of the central interval of probability P, as 0.9.", rich_help_panel=RESULT
        ),
    ] = None,
    latent: Annotated[
        bool,
        typer.Option(
            "--latent",
            help="Uncertainty of the function alone, without the noise of a measurement.",
            rich_help_panel=RESULT,
        ),
    ] = False,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:0; by default as the model was trained.")
    ] = None,
    ids: options.Ids = None,
    gaps: Annotated[
        str,
        typer.Option(
            "--gaps",
            metavar="HOW",
            help="impute: fill gaps where training had none. error: refuse them.",
            rich_help_panel=READING,
        ),
    ] = "error",
    json: options.Json = False,
    header: options.Header = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
) -> None:
    """Predict the target for every row of a table: one row out for each row in, in order. A table of any length is read
    and written in pieces.

    Columns that the model does not use are ignored. Those named by --id, here or in `rtgp fit`, are kept.

    [bold]Examples[/bold]

    \b
    rtgp predict model/ new.csv --output prices.csv
    rtgp predict model/ new.csv --output prices.csv.gz --std --interval 0.9
    rtgp predict model/ new.parquet --output prices.parquet --id key
    """
    if interval is not None and not 0.0 < interval < 1.0:
        raise SettingError(f"The option --interval must be a probability between 0 and 1. Got {interval}.")
    options.check_choice("gaps", gaps, ENCODER_GAPS)
    if output is not None:
        check_kind(output)
        check_file_output(output)
    regressor, record = load_model(model, device), read_fit_record(model)
    asked = options.names_in(ids)
    kept = asked or tuple(map(str, record.get("ids", ())))
    reading = Reading(header, separator, decimal)
    unknown: dict[str, set[str]] = {}

    def predicted() -> Iterator[Any]:
        first = 1
        for table in reading.pieces(data, (*kept, *text_columns(regressor))):
            if absent := [name for name in asked if name not in table.frame.columns]:
                raise InputError(f"{data}: no column {', '.join(map(repr, absent))}, named by --id.")
            frame = inputs_of(regressor, table, record.get("target"), gaps, first)
            for name, words in _unknown(regressor, table).items():
                unknown.setdefault(name, set()).update(words)
            found = _predicted(regressor, frame, std, interval, latent)
            columns = {name: table.frame[name].to_numpy() for name in kept if name in table.frame.columns}
            yield found.assign(**columns)[[*columns, *found.columns]] if columns else found
            first += len(found)

    if json and output is None:
        rows = [dict(zip(one.columns, row, strict=True)) for one in predicted()
                for row in one.astype(object).to_numpy().tolist()]  # fmt: skip
        show_json(rows)
    else:
        count = write_pieces(predicted(), output)
        if json:
            show_json({"predictions": str(output), "rows": count})
        if output is not None:
            say(f"{count} predictions written to {output}.")
    for name, new in unknown.items():
        some = ", ".join(map(repr, sorted(new)[:5])) + (" ..." if len(new) > 5 else "")
        say(f"{name!r}: the model does not know {some}; these rows are predicted from their other columns.")


def _predicted(regressor: Any, frame: Any, std: bool, interval: float | None, latent: bool) -> Any:
    import pandas as pd

    if not std and interval is None:
        return pd.DataFrame({"mean": regressor.predict(frame)})
    mean, deviation = regressor.predict(frame, return_std=True, include_noise=not latent)
    columns = {"mean": mean}
    if std:
        columns["std"] = deviation
    if interval is not None:
        half = NormalDist().inv_cdf(0.5 + interval / 2)
        columns["lower"], columns["upper"] = mean - half * deviation, mean + half * deviation
    return pd.DataFrame(columns)


def _unknown(regressor: Any, table: RawTable) -> dict[str, list[str]]:
    encoder = getattr(regressor, "table_encoder_", None)
    known = set(table.frame.columns)
    if encoder is None or not known.issuperset(encoder.names_in_):  # a file without names, read by position
        return {}
    found: dict[str, list[str]] = encoder.unknown(table.frame)
    return found
