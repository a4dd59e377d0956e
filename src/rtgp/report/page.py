"""One self-contained HTML file from a Report: no script, no request to anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from rtgp.report import picture, prediction_plots, training_plots
from rtgp.report.calibration import verdict
from rtgp.report.content import Curve, Report, Surface
from rtgp.report.environment import versions
from rtgp.report.files import write_text
from rtgp.report.style import to_svg


@dataclass(frozen=True)
class Drawing:
    """A figure of the page."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading, some words, figures; `kind` says how wide the figures are."""

    key: str
    title: str
    words: tuple[str, ...]
    drawings: tuple[Drawing, ...]
    kind: str = "half"


class _Draw:
    """Numbers the figures, so that their ids differ."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, drawn: Figure | None, caption: str) -> list[Drawing]:
        if drawn is None:
            return []
        self.count += 1
        return [Drawing(to_svg(drawn, f"f{self.count}", caption), caption)]


def render(report: Report) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("rtgp.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    draw = _Draw()
    made = [make(report, draw) for make in (_picture, _training, _hyperparameters, _roulette, _calibration, _residuals)]
    return environment.get_template("report.html.j2").render(
        report=report,
        sections=[section for section in made if section is not None],
        runs=report.runs,
        versions=versions(),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def write_report(path: str | Path, report: Report) -> Path:
    """Write the page as `path`; it appears there whole or not at all."""
    path, text = Path(path), render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _picture(report: Report, draw: _Draw) -> Section | None:
    shown = report.picture
    if isinstance(shown, Curve):
        caption = f"Mean of {shown.y_name} given {shown.x_name}, with 90% interval (noise included)."
        return Section("posterior", "The posterior", (), tuple(draw(picture.curve_figure(shown), caption)), "full")
    if isinstance(shown, Surface):
        drawings = draw(picture.mean_map(shown), f"Predicted {shown.value_name}.")
        drawings += draw(
            picture.uncertainty_map(shown),
            f"Its uncertainty: standard deviation of {shown.value_name}, noise included. Dots: training points.",
        )
        return Section("posterior", "The posterior", (shown.note,) if shown.note else (), tuple(drawings), "wide")
    return None


def _training(report: Report, draw: _Draw) -> Section | None:
    drawings = draw(training_plots.loss_traces(report.runs), "Objective against the step.")
    drawings += draw(training_plots.loss_against_time(report.runs), "Objective against the clock.")
    words = (
        "The estimated negative log marginal likelihood per point, as each method saw it. "
        "An estimate by plain CG is biased: compare methods by the table, not by these curves.",
    )
    return Section("training", "Training", words, tuple(drawings)) if drawings else None


def _hyperparameters(report: Report, draw: _Draw) -> Section | None:
    names = training_plots.hyperparameter_names(report.runs)
    shown, left = names[: training_plots.MOST_TRACES], names[training_plots.MOST_TRACES :]
    drawings: list[Drawing] = []
    for name in shown:
        drawings += draw(training_plots.hyperparameter_trace(report.runs, name), "")
    words = (f"{len(left)} more are in the table at the end.",) if left else ()
    return Section("hyperparameters", "Hyperparameters", words, tuple(drawings), "third") if drawings else None


def _roulette(report: Report, draw: _Draw) -> Section | None:
    drawings: list[Drawing] = []
    for i, run in enumerate(report.runs):
        drawings += draw(training_plots.truncation_draws(run, i), f"Truncations drawn by {run.name}, step by step.")
    drawings += draw(training_plots.truncation_histogram(report.runs), "How many iterations a step took.")
    drawings += draw(
        training_plots.solver_residuals(report.runs),
        "What the solves left undone. Roulette weights what it cuts, so its large residuals add noise and no bias.",
    )
    return Section("solves", "Truncations and solves", (), tuple(drawings)) if drawings else None


def _calibration(report: Report, draw: _Draw) -> Section | None:
    held_out = [(i, run, run.predictions) for i, run in enumerate(report.runs) if run.predictions is not None]
    if not held_out:
        return None
    drawings = draw(prediction_plots.coverage_plot(report.runs), "Coverage of the central intervals.")
    for i, run, predictions in held_out:
        drawings += draw(
            prediction_plots.pit_histogram(run, predictions, i),
            "Flat is right (grey band: two standard errors); a hump says too wide, raised ends say too narrow.",
        )
    words = tuple(f"{run.name}: {verdict(predictions)}" for _, run, predictions in held_out)
    return Section("calibration", f"Calibration ({held_out[0][2].kind})", words, tuple(drawings))


def _residuals(report: Report, draw: _Draw) -> Section | None:
    drawings: list[Drawing] = []
    plots: tuple[tuple[Callable[..., Figure], tuple[str, ...], str], ...] = (
        (prediction_plots.predicted_against_target, (report.target,), "Observed against predicted."),
        (prediction_plots.residuals_plot, (report.target,), "Standardised residuals; dashed: 90%."),
        (prediction_plots.quantile_plot, (), "Quantiles of the standardised residuals: on the line if normal."),
    )
    held_out = [(i, run, run.predictions) for i, run in enumerate(report.runs) if run.predictions is not None]
    if not held_out:
        return None
    i, run, predictions = held_out[-1]
    for plot, arguments, caption in plots:
        drawings += draw(plot(run, predictions, i, *arguments), caption)
    words = (f"For {run.name}.",) if len(held_out) > 1 else ()
    return Section("residuals", f"Residuals ({predictions.kind})", words, tuple(drawings))
