"""rtgp fit: a table in, a model folder out."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rtgp._cli import options
from rtgp._cli.files import (
    Reading,
    check_checkpoint,
    check_file_output,
    check_model_output,
    frame_of,
    read_data,
    say_notes,
    write_fit_record,
)
from rtgp._cli.help import RESULT
from rtgp._cli.ranks import ranks, spread
from rtgp._cli.scoring import facts_of
from rtgp._cli.terminal import afterwards, say, show_json, show_pairs
from rtgp._estimator.fitting import is_exact
from rtgp._estimator.pages import report_of, score_words
from rtgp._estimator.regressor import GPRegressor
from rtgp._estimator.relevance import known_relevance
from rtgp._estimator.words import likelihood_words, value_words
from rtgp._methods import on_one_process
from rtgp._report import Predictions, Report, coverage, rmse, versions, write_report
from rtgp._report.leave_one_out import UNASKED_UP_TO, UP_TO, leave_one_out
from rtgp.datasets import Dataset
from rtgp.distributed import TIMEOUT, Group, launched
from rtgp.errors import InputError, SettingError
from rtgp.tables import Prepared


def fit(
    data: options.Data,
    target: options.Target = None,
    inputs: options.Inputs = None,
    drop: options.Drop = None,
    ids: options.Ids = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder the model is saved to.", rich_help_panel=RESULT),
    ] = Path("model"),
    kernel: options.Kernel = "rbf",
    method: options.Method = "auto",
    steps: options.Steps = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    standardize: options.Standardize = True,
    holdout: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Part of the rows that is kept out of training, to judge the predictions by.",
            rich_help_panel=RESULT,
        ),
    ] = 0.0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Save the state of training here every 10 steps; the same command goes on from it after an "
            "interruption.",
            rich_help_panel=RESULT,
        ),
    ] = None,
    report: options.Report = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=1.0,
            metavar="SECONDS",
            help="How long a process waits for the others, where torchrun has started several.",
        ),
    ] = TIMEOUT,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model in the output folder.", rich_help_panel=RESULT)
    ] = False,
    json: options.Json = False,
    preprocess: options.Preprocess = "auto",
    gaps: options.Gaps = "impute",
    categories: options.Categories = None,
    date_format: options.DateFormat = None,
    header: options.Header = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    data_dir: options.DataDir = None,
) -> None:
    """Learn a Gaussian process from a table and save it.

    Categories, dates and gaps become numbers, keys are left out, and each is said.
    The saved model does the same with the tables that it predicts for.

    [bold]Examples[/bold]

    \b
    rtgp fit houses.csv --target price --output model/
    rtgp fit houses.csv -t price --kernel matern52 --report report.html
    rtgp fit houses.csv -t price --drop town --kernel "rbf + periodic(sold)"
    rtgp fit houses.csv -t price --method rr-cg --holdout 0.2
    rtgp fit houses.csv -t price --checkpoint state/
    torchrun --nproc-per-node=4 -m rtgp fit houses.csv --target price
    """
    with ranks(timeout, device) as group:

        def prepare() -> tuple[dict[str, Any], Prepared, tuple[Dataset, Dataset | None]]:
            settings = options.regressor_settings(kernel, steps, learning_rate, seed, device, dtype, standardize)
            options.check_choice("method", method, options.METHOD_NAMES)
            if not 0.0 <= holdout <= 0.9:
                raise SettingError(f"The option --holdout must be between 0 and 0.9. Got {holdout}.")
            asked = options.table_settings(inputs, drop, preprocess, ids, categories, date_format, gaps)
            if group.first:
                _check_outputs(output, overwrite, checkpoint, report)
            made = read_data(data, target, Reading(header, separator, decimal), asked, data_dir)
            return settings, made, _hold_out(made.dataset, holdout, seed)

        settings, made, (train, test) = group.together(prepare)
        dataset = made.dataset
        say_notes(made)
        begun = _before(dataset, made, len(train))
        if not json:
            show_pairs(begun, flush=True)
        chosen = spread(method) if launched() else method
        if isinstance(chosen, str) and not group.first:
            return  # such a method knows one process only
        team = Group.alone() if isinstance(chosen, str) else group
        regressor = GPRegressor(method=chosen, **settings).fit(frame_of(train), train.y, checkpoint=checkpoint)
        if made.encoder is not None:
            regressor.table_encoder_ = made.encoder
        record = _record(data, train, options.names_in(ids))

        def save() -> None:
            regressor.save(output)
            write_fit_record(output, record)

        team.from_first(save)  # before anything else that may fail: training is what took the time
        predictions = None
        relevance: dict[str, float] = {}
        try:
            with afterwards(f"The model was saved to {str(output)!r}", _following(report)):
                relevance = known_relevance(regressor)  # on all ranks
                record["relevance"] = relevance
                predictions = _judge(regressor, train, test, needed=report is not None)
                if group.first:
                    write_fit_record(output, record | _judged(predictions))
                page = None if report is None else _report(regressor, method, dataset, train, predictions)
                if report is not None and page is not None and group.first:
                    write_report(report, page)
        finally:
            if group.first and json:
                show_json({"model": output, **record, "inputs": list(train.feature_names), "notes": list(made.notes),
                           **facts_of(regressor), **_judged(predictions)})  # fmt: skip
            elif group.first:
                _show(regressor, predictions, relevance, group.size)
        say(f"Model saved to {output}." + (f" Report written to {report}." if report else ""))


def _check_outputs(output: Path, overwrite: bool, checkpoint: Path | None, report: Path | None) -> None:
    check_model_output(output, overwrite)
    if checkpoint is not None:
        check_checkpoint(checkpoint, output)
    if report is not None:
        check_file_output(report)


def _hold_out(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset | None]:
    kept_out = round(share * len(dataset))
    if share == 0.0:
        return dataset, None
    if kept_out < 1 or len(dataset) - kept_out < 2:
        raise InputError(f"--holdout {share} of {len(dataset)} rows leaves {len(dataset) - kept_out} to learn from.")
    shuffled = dataset.subset(len(dataset), seed)
    index = np.arange(len(dataset))
    return shuffled.rows(index[kept_out:]), shuffled.rows(index[:kept_out])


def _following(report: Path | None) -> str:
    return "the predictions of the held-out rows" if report is None else f"its report {str(report)!r}"


def _judge(regressor: Any, train: Dataset, test: Dataset | None, needed: bool) -> Predictions | None:
    if test is not None:
        mean, std = regressor.predict(frame_of(test), return_std=True)
        return Predictions(test.y, mean, std, places=test.X if test.X.shape[1] == 2 else None)
    if not is_exact(regressor.model_):
        return None
    return leave_one_out(regressor.model_, train.y, UP_TO if needed else UNASKED_UP_TO)


def _report(regressor: Any, asked: str, dataset: Dataset, train: Dataset, predictions: Predictions | None) -> Report:
    names = dataset.feature_names
    settings = {
        "data": dataset.name,
        "rows": len(dataset),
        "trained on": len(train),
        "target": dataset.target_name,
        "inputs": ", ".join(names[:30]) + (" ..." if len(names) > 30 else ""),
        "method asked for": asked,
        **{key: value for key, value in regressor.get_params(deep=False).items() if key != "method"},
    }
    title, command = f"{dataset.target_name} of {dataset.name}", shlex.join(["rtgp", *sys.argv[1:]])
    return report_of(regressor, predictions, title, dataset.target_name, settings, command)


def _before(dataset: Dataset, made: Prepared, rows: int) -> list[tuple[str, str]]:
    """What is learned from what, said before the work begins."""
    source = dataset.feature_names if made.encoder is None else made.encoder.names_in_
    inputs = f"{len(source)}: {', '.join(source[:30])}{' ...' if len(source) > 30 else ''}"
    if len(source) != len(dataset.feature_names):
        inputs += f" ({len(dataset.feature_names)} numbers)"
    held_out = f", {len(dataset) - rows:,} held out" if rows < len(dataset) else ""
    return [("target", dataset.target_name), ("inputs", inputs), ("rows", f"{rows:,}{held_out}")]


def _record(data: str, train: Dataset, ids: tuple[str, ...]) -> dict[str, Any]:
    return {
        "target": train.target_name,
        "data": data,
        "rows": len(train),
        "ids": list(ids),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
    }


def _judged(predictions: Predictions | None) -> dict[str, Any]:
    if predictions is None:
        return {}
    return {
        predictions.kind: {
            "rows": len(predictions),
            "rmse": rmse(predictions),
            "coverage of 90% intervals": coverage(predictions),
        }
    }


def _show(regressor: Any, predictions: Predictions | None, relevance: dict[str, float], processes: int) -> None:
    result = regressor.fit_result_
    several = processes > 1 and regressor.method_ != on_one_process(regressor.method_)
    where = f", on {processes} processes" if several else ""
    rows = [
        ("method", f"{type(regressor.method_).__name__} ({regressor.method_reason_}{where})"),
        ("training", f"{result.steps} steps, {result.seconds:.1f} s: {result.message}"),
        ("log marginal likelihood", likelihood_words(regressor)),
    ]
    rows += value_words(regressor, relevance)
    if predictions is not None:
        rows += score_words(predictions)
    show_pairs(rows)
