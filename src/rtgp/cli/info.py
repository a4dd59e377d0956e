"""rtgp info: what a saved model is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtgp.cli.files import read_fit_record
from rtgp.cli.scoring import likelihood_words, value_words
from rtgp.cli.terminal import show_pairs
from rtgp.regressor import GPRegressor


def info(model: Annotated[Path, typer.Argument(help="Folder written by `rtgp fit`.")]) -> None:
    """Show what a saved model is: method, hyperparameters, columns, where it came from.

    [bold]Example[/bold]

    \b
    rtgp info model/
    """
    regressor, record = GPRegressor.load(model), read_fit_record(model)
    features = [str(name) for name in getattr(regressor, "feature_names_in_", range(regressor.n_features_in_))]
    rows = [("model", str(model))]
    rows += [(key, str(record[key])) for key in ("target", "data", "rows", "made") if key in record]
    rows += [
        ("inputs", f"{len(features)}: {', '.join(features[:30])}{' ...' if len(features) > 30 else ''}"),
        ("kernel", str(regressor.kernel)),
        ("method", f"{regressor.method_} ({regressor.method_reason_})"),
        ("steps", str(len(regressor.history_))),
    ]
    rows.append(("log marginal likelihood", likelihood_words(regressor)))
    rows += value_words(regressor)
    for kind in ("held-out", "leave-one-out"):
        if isinstance(record.get(kind), dict):
            rows += [(f"{key}, {kind}", f"{found:.4g}") for key, found in record[kind].items()]
    show_pairs(rows)
