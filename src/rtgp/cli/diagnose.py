"""rtgp diagnose: what plain CG would do to the hyperparameters, in figures and in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rtgp.cli import options
from rtgp.cli.files import read_data
from rtgp.cli.terminal import on_terminal, say, show_pairs, show_table
from rtgp.diagnostics import Diagnosis, tables
from rtgp.diagnostics import diagnose as diagnose_subject
from rtgp.errors import SettingError
from rtgp.methods import CG
from rtgp.preconditioners import PivotedCholesky


def diagnose(
    data: Annotated[
        str, typer.Argument(help="Table of numbers, name of a known data set, or folder written by `rtgp fit`.")
    ],
    target: options.Target = None,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of plain CG.")] = 100,
    rank: Annotated[int, typer.Option(min=0, help="Rank of plain CG's preconditioner; 0: none.")] = 5,
    probes: Annotated[int, typer.Option(min=1, help="Probe vectors of plain CG.")] = 10,
    draws: Annotated[
        int | None, typer.Option(min=2, help="Gradients of each kind to draw; by default 16, fewer for large data.")
    ] = None,
    kernel: options.Kernel = "rbf",
    dtype: options.Dtype = "float32",
    points: Annotated[int | None, typer.Option(min=5, help="Use this many rows, drawn at random.")] = None,
    seed: options.Seed = 0,
    header: options.Header = None,
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
    options.check_choice("kernel", kernel, options.KERNELS)
    options.check_choice("dtype", dtype, options.DTYPES)
    method = CG(iterations, probes, PivotedCholesky(rank, "greedy") if rank else None)
    if (Path(data) / "model.json").is_file():
        found = diagnose_subject(_saved_model(data, target, points), method=method, draws=draws, seed=seed)
    else:
        dataset = read_data(data, target, header, data_dir)
        if points is not None:
            dataset = dataset.subset(points, seed)
        if on_terminal():
            say(f"Fitting {len(dataset)} rows, then drawing gradients ...")
        made = _kernel(kernel, dataset.X.shape[1])
        found = diagnose_subject(dataset, method=method, kernel=made, dtype=dtype, draws=draws, seed=seed)
    _show(found)


def _saved_model(folder: str, target: str | None, points: int | None) -> Any:
    from rtgp.regressor import GPRegressor

    for option, value in (("target", target), ("points", points)):
        if value is not None:
            raise SettingError(f"The option --{option} is for tables. {folder!r} is a model with data of its own.")
    return GPRegressor.load(folder)


def _kernel(name: str, dimension: int) -> Any:
    from rtgp.modelling.model import named_kernel

    return named_kernel(name, dimension)


def _show(found: Diagnosis) -> None:
    show_table(tables.HEAD, tables.rows(found), f"What {found.name} does to each hyperparameter", tables.note(found))
    typer.echo()
    show_pairs(tables.pairs(found))
    typer.echo()
    typer.echo(found.verdict)
