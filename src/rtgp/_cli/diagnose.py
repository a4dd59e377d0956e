"""rtgp diagnose: what plain CG would do to the hyperparameters, in figures and in words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from rtgp._cli import options
from rtgp._cli.files import Reading, load_model, read_data, say_notes
from rtgp._cli.terminal import on_terminal, say, show_json, show_pairs, show_table
from rtgp._estimator.model import check_kernel_setting
from rtgp._methods import CG
from rtgp._persistence.folder import DESCRIPTION_FILE
from rtgp._preconditioners import PivotedCholesky
from rtgp.datasets import Dataset, Scaling
from rtgp.diagnostics import Diagnosis
from rtgp.diagnostics import _tables as tables
from rtgp.diagnostics import diagnose as diagnose_subject
from rtgp.errors import SettingError


def diagnose(
    data: Annotated[str, typer.Argument(help="Table, name of a known data set, or folder written by `rtgp fit`.")],
    target: options.Target = None,
    inputs: options.Inputs = None,
    drop: options.Drop = None,
    iterations: Annotated[int, typer.Option(metavar="N", min=1, help="Iterations of plain CG.")] = 100,
    rank: Annotated[int, typer.Option(metavar="N", min=0, help="Rank of plain CG's preconditioner; 0: none.")] = 5,
    probes: Annotated[int, typer.Option(metavar="N", min=1, help="Probe vectors of plain CG.")] = 10,
    draws: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Gradients of each kind to draw; by default 16, fewer for large data."),
    ] = None,
    kernel: options.Kernel = "rbf",
    dtype: options.Dtype = "float32",
    points: Annotated[int | None, typer.Option(metavar="N", min=5, help="Use this many rows, drawn at random.")] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    preprocess: options.Preprocess = "auto",
    header: options.Header = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    data_dir: options.DataDir = None,
) -> None:
    """Measure the bias of plain conjugate gradients and say whether it matters.

    For a table the hyperparameters are fitted first, by Cholesky on at most 1000 rows; a saved model is taken as it
    is. Nothing is written.

    [bold]Examples[/bold]

    \b
    rtgp diagnose houses.csv --target price
    rtgp diagnose houses.csv --target price --iterations 20 --kernel matern52
    rtgp diagnose model/
    """
    check_kernel_setting(kernel)
    options.check_choice("dtype", dtype, options.DTYPES)
    method = CG(iterations, probes, PivotedCholesky(rank, "greedy") if rank else None)
    if (Path(data) / DESCRIPTION_FILE).is_file():
        found = diagnose_subject(_saved_model(data, target, points), method=method, draws=draws, seed=seed)
    else:
        asked = options.table_settings(inputs, drop, preprocess)
        table = read_data(data, target, Reading(header, separator, decimal), asked, data_dir)
        say_notes(table)
        dataset = table.dataset
        if points is not None:
            dataset = dataset.subset(points, seed)
        if on_terminal():
            say(f"Fitting {len(dataset)} rows, then drawing gradients ...")
        made = _kernel(kernel, dataset)
        found = diagnose_subject(dataset, method=method, kernel=made, dtype=dtype, draws=draws, seed=seed)
    if json:
        each = [dataclasses.asdict(one) for one in found.hyperparameters]
        facts = {"method": found.name, "hyperparameters": each, "verdict": found.verdict}
        show_json(facts | dict(tables.pairs(found)))
    else:
        _show(found)


def _saved_model(folder: str, target: str | None, points: int | None) -> Any:
    for option, value in (("target", target), ("points", points)):
        if value is not None:
            raise SettingError(f"The option --{option} is for tables. {folder!r} is a model with data of its own.")
    return load_model(Path(folder))


def _kernel(words: str, dataset: Dataset) -> Any:
    from rtgp._estimator.kernel_building import kernel_from_words
    from rtgp._estimator.model import KERNELS, named_kernel

    if words in KERNELS:
        return named_kernel(words, dataset.X.shape[1])
    working = dataset.standardised()
    units = Scaling.of(dataset.X, dataset.y).x_scale
    return kernel_from_words(words, dataset.feature_names, working.X, working.y, units)


def _show(found: Diagnosis) -> None:
    show_table(tables.HEAD, tables.rows(found), f"What {found.name} does to each hyperparameter", tables.note(found))
    typer.echo()
    show_pairs(tables.pairs(found))
    typer.echo()
    typer.echo(found.verdict)
