"""Figures that are handed out: matplotlib's, with colours of their own, which a notebook shows as they are."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.figure import Figure

from rtgp._report import picture, prediction_plots
from rtgp._report.content import Curve, Predictions, Run, Slices, Surface
from rtgp._report.style import ON_WHITE, Where, drawn_with


class Drawing(Figure):
    """A figure that a notebook shows also where pyplot was never loaded."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


Part = Callable[[Where], object]


def posterior_figure(shown: Curve | Surface | Slices) -> Drawing:
    """A curve with its band, two maps, or slices."""
    if isinstance(shown, Curve):
        return _several([lambda where: picture.curve_figure(shown, where)], 1, (7.2, 3.8))
    if isinstance(shown, Surface):
        maps: list[Part] = [
            lambda where: picture.mean_map(shown, where),
            lambda where: picture.uncertainty_map(shown, where),
        ]
        return _several(maps, 2, (4.8, picture.map_height(shown)))
    low, high = picture.slices_range(shown)
    parts = [partial(picture.slice_figure, one, shown.value_name, low, high) for one in shown.slices]
    return _several(parts, 3, (3.6, 2.5))


def relevance_figure(shown: Slices) -> Drawing:
    """A bar for each input."""
    return _several([lambda where: picture.relevance_chart(shown, where)], 1, (4.8, picture.relevance_height(shown)))


def calibration_figure(predictions: Predictions, target: str) -> Drawing:
    """Coverage of the intervals, and observed against predicted."""
    run = Run(predictions.kind, predictions=predictions)
    parts: list[Part] = [
        lambda where: prediction_plots.coverage_plot([run], where),
        lambda where: prediction_plots.predicted_against_target(run, predictions, 0, target, where),
    ]
    return _several(parts, 2, (4.4, 3.4))


def _several(parts: Sequence[Part], columns: int, size: tuple[float, float]) -> Drawing:
    """One part beside the other; size: of one, in inches."""
    columns = min(columns, len(parts))
    rows = -(-len(parts) // columns)
    with drawn_with(ON_WHITE):
        made = Drawing(figsize=(size[0] * columns, size[1] * rows), layout="constrained", facecolor=ON_WHITE.background)
        places = made.subfigures(rows, columns, squeeze=False).ravel()
        for place, part in zip(places, parts, strict=False):  # the last row may have places left
            part(place)
    return made
