"""rtgp compare: several methods on one table, one line each."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from rtgp._cli import options
from rtgp._cli.files import Reading, check_file_output, read_data, say_notes
from rtgp._cli.scoring import HEAD, Score, note, score
from rtgp._cli.terminal import afterwards, on_terminal, say, show_json, show_table
from rtgp._report import Report, Table, write_report
from rtgp._report.grids import picture_of
from rtgp.datasets import Dataset
from rtgp.errors import SettingError


def compare(
    data: options.Data,
    target: options.Target = None,
    inputs: options.Inputs = None,
    drop: options.Drop = None,
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Names with commas between: of {', '.join(options.METHOD_NAMES)}.")
    ] = "cholesky,cg,rr-cg",
    kernel: options.Kernel = "rbf",
    steps: options.Steps = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    points: Annotated[int | None, typer.Option(metavar="N", min=5, help="Use this many rows, drawn at random.")] = None,
    report: options.Report = None,
    json: options.Json = False,
    preprocess: options.Preprocess = "auto",
    header: options.Header = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    data_dir: options.DataDir = None,
) -> None:
    """Fit one table by several methods and tabulate likelihood, errors and time.

    The rows are split 64/16/20 by the seed: training, validation (not used), test.

    [bold]Examples[/bold]

    \b
    rtgp compare houses.csv --target price
    rtgp compare houses.csv -t price --methods cg,rr-cg --report report.html
    rtgp compare elevators --data-dir data/ --points 4000
    """
    settings = options.regressor_settings(kernel, steps, learning_rate, seed, device, dtype)
    chosen = [options.check_choice("methods", name.strip(), options.METHOD_NAMES) for name in methods.split(",")]
    if len(set(chosen)) < len(chosen):
        raise SettingError(f"The option --methods names a method twice. Got {methods!r}.")
    if report is not None:
        check_file_output(report)
    asked = options.table_settings(inputs, drop, preprocess)
    made = read_data(data, target, Reading(header, separator, decimal), asked, data_dir)
    say_notes(made)
    dataset = made.dataset
    if points is not None:
        dataset = dataset.subset(points, seed)
    parts = dataset.split(seed, standardise=False)
    scores, problem = run_methods(chosen, parts.train, parts.test, settings)
    title = f"{dataset.target_name} of {dataset.name}: {len(parts.train)} training rows, {len(parts.test)} test rows"
    rows = [one.cells() for one in scores]
    if json:
        show_json({"title": title, "methods": [one.facts() for one in scores]})
    else:
        show_table(HEAD, rows, title, note(scores))
    if report is not None:
        names, target_name = dataset.feature_names, dataset.target_name
        with afterwards("The table above is complete", f"the report {str(report)!r}"):
            page = Report(
                title=title,
                summary=f"Kernel {kernel}, {len(names)} input{'s' if len(names) > 1 else ''}, seed {seed}.",
                runs=[one.run() for one in scores],
                table=Table(HEAD, rows, note(scores)),
                picture=picture_of(scores[-1].regressor.predict, parts.train.X, parts.train.y, names, target_name),
                settings={"data": data, "rows": len(dataset), "split": "64/16/20", "seed": seed, **settings},
                command=shlex.join(["rtgp", *sys.argv[1:]]),
                target=target_name,
            )
            say(f"Report written to {write_report(report, page)}.")
    if problem is not None:
        raise problem


def run_methods(
    methods: list[str], train: Dataset, test: Dataset, settings: dict[str, object]
) -> tuple[list[Score], Exception | None]:
    """Each method in turn, from the same start and seed. The second value is the error of the one that failed.

    Methods that have finished are worth their table: the error is raised here only where there is none.
    """
    scores: list[Score] = []
    for method in methods:
        if on_terminal():
            say(f"{method} ...")
        try:
            scores.append(score(method, train, test, settings))
        except Exception as error:
            if not scores:
                raise
            say(f"{method} failed: the table has the {len(scores)} method(s) before it.")
            return scores, error
    return scores, None
