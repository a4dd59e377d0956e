"""rtgp info: what a saved model is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rtgp._cli import options
from rtgp._cli.files import load_model, read_fit_record
from rtgp._cli.scoring import facts_of
from rtgp._cli.terminal import show_json, show_pairs
from rtgp._estimator.words import likelihood_words, value_words


def info(
    model: Annotated[Path, typer.Argument(help="Folder written by `rtgp fit`.")], json: options.Json = False
) -> None:
    """Show what a saved model is: method, hyperparameters, columns, where it came from.

    [bold]Example[/bold]

    \b
    rtgp info model/
    """
    regressor, record = load_model(model), read_fit_record(model)
    encoder = getattr(regressor, "table_encoder_", None)
    features = [str(name) for name in getattr(regressor, "feature_names_in_", range(regressor.n_features_in_))]
    if json:
        table = {} if encoder is None else {"table": encoder.describe()}
        show_json({"model": model, **record, "inputs": features, **facts_of(regressor), **table})
        return
    held: Any = record.get("relevance")
    parts = held.items() if isinstance(held, dict) else ()
    known = {str(name): float(part) for name, part in parts if isinstance(part, (int, float))}
    notes = () if encoder is None else encoder.notes_
    features = features if encoder is None else list(encoder.names_in_)
    rows = [("model", str(model))]
    rows += [(key, str(record[key])) for key in ("target", "data", "rows", "made") if key in record]
    rows += [
        ("inputs", f"{len(features)}: {', '.join(features[:30])}{' ...' if len(features) > 30 else ''}"),
        *(("", note) for note in notes),
        ("kernel", str(regressor.kernel)),
        ("method", f"{regressor.method_} ({regressor.method_reason_})"),
        ("steps", str(len(regressor.history_))),
    ]
    rows.append(("log marginal likelihood", likelihood_words(regressor)))
    rows += value_words(regressor, known)
    for kind in ("held-out", "leave-one-out"):
        if isinstance(record.get(kind), dict):
            rows += [(f"{key}, {kind}", f"{found:.4g}") for key, found in record[kind].items()]
    show_pairs(rows)
