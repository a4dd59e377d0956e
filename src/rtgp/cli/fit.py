"""rtgp fit: a table in, a model folder out."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rtgp.cli import options
from rtgp.cli.files import (
    check_checkpoint,
    check_file_output,
    check_model_output,
    frame_of,
    read_data,
    write_fit_record,
)
from rtgp.cli.ranks import ranks, spread
from rtgp.cli.scoring import likelihood_words, run_of, value_words
from rtgp.cli.terminal import afterwards, say, show_pairs
from rtgp.datasets import Dataset
from rtgp.distributed import TIMEOUT, Group, launched
from rtgp.errors import InputError, SettingError
from rtgp.methods import anywhere
from rtgp.modelling.fitting import is_exact
from rtgp.regressor import GPRegressor
from rtgp.report import Predictions, Report, coverage, rmse, versions, write_report
from rtgp.report.leave_one_out import leave_one_out
from rtgp.report.picture import picture_of


def fit(
    data: options.Data,
    target: options.Target = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder the model is saved to.")
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
        float, typer.Option(help="Share of the rows kept out of training, to judge the predictions by.")
    ] = 0.0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Save the state of training here every 10 steps; the same command goes on from it after an "
            "interruption.",
        ),
    ] = None,
    report: options.Report = None,
    timeout: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds a process waits for the others, where torchrun has started several."),
    ] = TIMEOUT,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model in the output folder.")] = False,
    header: options.Header = None,
    data_dir: options.DataDir = None,
) -> None:
    """Learn a Gaussian process from a table and save it.

    [bold]Examples[/bold]

    \b
    rtgp fit houses.csv --target price --output model/
    rtgp fit houses.csv --target price --output model/ --kernel matern52 --report report.html
    rtgp fit houses.csv --target price --output model/ --method rr-cg --holdout 0.2
    rtgp fit houses.csv --target price --output model/ --checkpoint state/
    torchrun --nproc-per-node=4 -m rtgp fit houses.csv --target price --output model/
    """
    with ranks(timeout, device) as group:

        def prepare() -> tuple[dict[str, Any], Dataset, tuple[Dataset, Dataset | None]]:
            settings = options.regressor_settings(kernel, steps, learning_rate, seed, device, dtype, standardize)
            options.check_choice("method", method, options.METHOD_NAMES)
            if not 0.0 <= holdout <= 0.9:
                raise SettingError(f"The option --holdout must be between 0 and 0.9. Got {holdout}.")
            if group.first:
                _check_outputs(output, overwrite, checkpoint, report)
            dataset = read_data(data, target, header, data_dir)
            return settings, dataset, _hold_out(dataset, holdout, seed)

        settings, dataset, (train, test) = group.together(prepare)
        chosen = spread(method) if launched() else method
        if isinstance(chosen, str) and not group.first:
            return  # such a method knows one process only
        team = Group.alone() if isinstance(chosen, str) else group
        regressor = GPRegressor(method=chosen, **settings).fit(frame_of(train), train.y, checkpoint=checkpoint)

        def save() -> None:
            regressor.save(output)
            write_fit_record(output, _record(data, train, None))

        team.from_first(save)  # before anything else that may fail: training is what took the time
        predictions = None
        try:
            with afterwards(f"The model was saved to {str(output)!r}", _following(report)):
                predictions = _judge(regressor, train, test, needed=report is not None)
                if predictions is not None and group.first:
                    write_fit_record(output, _record(data, train, predictions))
                page = None if report is None else _report(regressor, method, dataset, train, predictions)
                if report is not None and page is not None and group.first:
                    write_report(report, page)
        finally:
            if group.first:
                _show(regressor, predictions, group.size)
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
        return Predictions(test.y, mean, std)
    return leave_one_out(regressor.model_, train.y) if needed and is_exact(regressor.model_) else None


def _report(regressor: Any, asked: str, dataset: Dataset, train: Dataset, predictions: Predictions | None) -> Report:
    names, name = dataset.feature_names, type(regressor.method_).__name__
    return Report(
        title=f"{dataset.target_name} of {dataset.name}",
        summary=f"A Gaussian process for {dataset.target_name!r} given {len(names)} input(s), learned by {name} from "
        f"{len(train)} rows. Log marginal likelihood {likelihood_words(regressor)}.",
        runs=[run_of(regressor, name, predictions)],
        picture=picture_of(regressor.predict, train.X, train.y, names, dataset.target_name),
        settings={
            "data": dataset.name,
            "rows": len(dataset),
            "trained on": len(train),
            "target": dataset.target_name,
            "inputs": ", ".join(names[:30]) + (" ..." if len(names) > 30 else ""),
            "method asked for": asked,
            **{key: value for key, value in regressor.get_params(deep=False).items() if key != "method"},
        },
        command=shlex.join(["rtgp", *sys.argv[1:]]),
        target=dataset.target_name,
    )


def _record(data: str, train: Dataset, predictions: Predictions | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "target": train.target_name,
        "data": data,
        "rows": len(train),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
    }
    if predictions is not None:
        record[predictions.kind] = {
            "rows": len(predictions),
            "rmse": rmse(predictions),
            "coverage of 90% intervals": coverage(predictions),
        }
    return record


def _show(regressor: Any, predictions: Predictions | None, processes: int) -> None:
    result = regressor.fit_result_
    where = f", on {processes} processes" if processes > 1 and regressor.method_ != anywhere(regressor.method_) else ""
    rows = [
        ("method", f"{type(regressor.method_).__name__} ({regressor.method_reason_}{where})"),
        ("training", f"{result.steps} steps, {result.seconds:.1f} s: {result.message}"),
        ("log marginal likelihood", likelihood_words(regressor)),
    ]
    rows += value_words(regressor)
    if predictions is not None:
        rows.append((f"RMSE, {predictions.kind}", f"{rmse(predictions):.4g}"))
        rows.append((f"90% coverage, {predictions.kind}", f"{coverage(predictions):.1%}"))
    show_pairs(rows)
