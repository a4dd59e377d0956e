"""Predictions in pieces: a table of any length goes in and comes out in bounded memory."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rtgp._cli.predictions import csv_text, write_predictions
from rtgp._storage import appended, writing

if TYPE_CHECKING:
    import pandas as pd


def write_pieces(pieces: Iterable[pd.DataFrame], output: Path | None) -> int:
    """Put the rows of all pieces under `output`, whole or not at all, or print them as they come; their number."""
    if output is not None and output.suffix.lower() == ".parquet":
        import pandas as pd

        whole = pd.concat(pieces, ignore_index=True)  # the predictions alone: their kinds are known at the end only
        write_predictions(output, whole)
        return len(whole)
    count, separator = 0, "\t" if output is not None and ".tsv" in output.name.lower() else ","
    with _sink(output) as write:
        for piece in pieces:
            write(csv_text(piece, separator, header=count == 0))
            count += len(piece)
    return count


@contextmanager
def _sink(output: Path | None) -> Iterator[Callable[[str], object]]:
    if output is None:
        yield lambda text: typer.echo(text, nl=False)
        return
    # What fails to be read in between has become another error by itself.
    with writing(output.name, output.parent), appended(output) as file:
        if output.suffix.lower() == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield lambda text: packed.write(text.encode("utf-8"))
        else:
            yield lambda text: file.write(text.encode("utf-8"))
