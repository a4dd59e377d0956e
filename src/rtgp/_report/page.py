"""One self-contained HTML file from a Report: no script, no request to anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rtgp._provenance import versions
from rtgp._report import picture, prediction_plots, training_plots
from rtgp._report.calibration import verdict
from rtgp._report.content import Curve, Report, Slices, Surface
from rtgp._report.style import Where, to_svg


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

    def __call__(self, drawn: Where | None, caption: str) -> list[Drawing]:
        if drawn is None:
            return []
        self.count += 1
        return [Drawing(to_svg(drawn, f"f{self.count}", caption), caption)]


def render(report: Report) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("rtgp._report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    draw = _Draw()
    made = [make(report, draw) for make in ORDER]
    return environment.get_template("report.html.j2").render(
        report=report,
        sections=[section for section in made if section is not None],
        runs=report.runs,
        versions=versions(),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


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
        if shown.data is not None:
            caption = f"Observed {shown.value_name}: the mean of the {len(shown.data):,} points in each cell."
            drawings += draw(picture.data_map(shown, shown.data), caption)
        drawings += _missed(report, shown, draw)
        return Section("posterior", "The posterior", (shown.note,) if shown.note else (), tuple(drawings), "wide")
    if isinstance(shown, Slices):
        low, high = picture.slices_range(shown)
        drawings = [
            one
            for piece in shown.slices
            for one in draw(picture.slice_figure(piece, shown.value_name, low, high), f"Along {piece.name}.")
        ]
        words = (
            "Mean and 90% interval along one input at a time, the most relevant first; the others are at their medians."
        )
        return Section("posterior", "The posterior", (words,), tuple(drawings), "third")
    return None


def _missed(report: Report, shown: Surface, draw: _Draw) -> list[Drawing]:
    """Where the last run that predicts is off."""
    for run in reversed(report.runs):
        found = run.predictions
        if found is not None and found.places is not None:
            caption = f"Residuals of {run.name} ({found.kind}): the mean of the {len(found):,} points in each cell."
            return draw(picture.residual_map(shown, found, found.places), caption)
    return []


def _relevance(report: Report, draw: _Draw) -> Section | None:
    if not isinstance(report.picture, Slices):
        return None
    left = len(report.picture.relevance) - picture.MOST_BARS
    words = (
        "By how much the prediction changes where one input is taken from another row (root mean square, in standard "
        f"deviations of the target).{f' {left} inputs that matter less are not shown.' if left > 0 else ''}",
    )
    drawings = draw(picture.relevance_chart(report.picture), "What each input contributes.")
    return Section("relevance", "Relevance of the inputs", words, tuple(drawings))


def _training(report: Report, draw: _Draw) -> Section | None:
    drawings = draw(training_plots.loss_traces(report.runs), "Objective against the step.")
    drawings += draw(training_plots.loss_against_time(report.runs), "Objective against the clock.")
    several = len(report.runs) > 1
    words = ["The negative log marginal likelihood per point" + (", as each method saw it." if several else ".")]
    if several:
        words.append("Some of these are estimates: compare methods by the table, not by these curves.")
    return Section("training", "Training", (" ".join(words),), tuple(drawings)) if drawings else None


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
    weighted = any(one.caption.startswith("Truncations") for one in drawings)
    words = " Roulette weights what it cuts, so its large residuals add noise and no bias." if weighted else ""
    drawings += draw(training_plots.solver_residuals(report.runs), f"What the solves left undone.{words}")
    title = "Truncations and solves" if weighted else "Solves"
    return Section("solves", title, (), tuple(drawings)) if drawings else None


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
    plots: tuple[tuple[Callable[..., Where], tuple[str, ...], str], ...] = (
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


# What a reader asks first stands first: what was learned, whether it can be trusted, then how it came about.
ORDER = (_picture, _relevance, _calibration, _residuals, _hyperparameters, _training, _roulette)
