"""What all figures share: one colour and marker for each method, and files in fixed colours.

Figures are drawn in the marker colours of `rtgp._report.style`, which a page turns into its own. For a file of its own
a figure is recoloured in the light palette.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgba, to_rgba_array
from matplotlib.figure import Figure
from PIL import Image

from reproduction.methods import LABELS
from rtgp._report.style import GRID, INK, MUTED, PAPER, SERIES, axes, figure, legend

__all__ = ["EXACT", "axes", "color", "error_bars", "exact_line", "figure", "legend", "line", "save"]

# The page's light palette: told apart by people with any kind of colour vision, together with the markers.
_LIGHT = {INK: "#1a1d21", MUTED: "#5c6570", GRID: "#dfe3e8", PAPER: "#ffffff"} | dict(
    zip(
        SERIES,
        ("#1f6fb4", "#c4561a", "#1c8a5a", "#8a4fb0", "#a3780f", "#b23a5c", "#0f7f8c", "#6b6f76"),
        strict=True,
    )
)
_STYLE = {  # method -> colour, marker
    "cholesky": (INK, "x"),
    "cg": (SERIES[1], "s"),
    "rr-cg": (SERIES[0], "o"),
    "rr-cg-ours": (SERIES[2], "D"),
    "rr-cg-matern32": (SERIES[5], "P"),
    "rff": (SERIES[4], "^"),
    "ss-rff": (SERIES[3], "v"),
    "ss-rff-ours": (SERIES[5], "<"),
    "svgp": (MUTED, "p"),
    "poe": (MUTED, "h"),
    "sggp": (MUTED, "*"),
    "cholesky-paper": (INK, "+"),
}
COLORS = 256  # of a PNG file
EXACT: dict[str, Any] = {"color": INK, "linestyle": (0, (5, 3)), "linewidth": 1.2}


def color(method: str) -> str:
    return _STYLE[method][0]


def line(on: Axes, method: str, x: Sequence[float], y: Sequence[float], label: str = "", **settings: Any) -> None:
    """A curve in the method's colour."""
    settings = {"linewidth": 1.7, "color": color(method), **settings}
    on.plot(x, y, label=label or LABELS[method], **settings)


def error_bars(
    on: Axes,
    method: str,
    x: Sequence[float],
    y: Sequence[float],
    error: Sequence[float],
    label: str = "",
    **settings: Any,
) -> None:
    """Points with bars of two standard errors."""
    shown, marker = _STYLE[method]
    settings = {"linewidth": 1.0, "markersize": 5.5, "color": shown, "marker": marker, "capsize": 3, **settings}
    on.errorbar(x, y, yerr=2 * np.asarray(error), label=label or LABELS[method], **settings)


def exact_line(on: Axes, value: float, label: str = "exact (Cholesky)") -> None:
    on.axhline(value, label=label, zorder=1, **EXACT)


def save(drawn: Figure, folder: Path, name: str, dots: int = 110) -> list[Path]:
    """NAME.png and NAME.svg, recoloured: the figure is not to be used in a page after this."""
    folder.mkdir(parents=True, exist_ok=True)
    _recolour(drawn)
    drawn.patch.set(alpha=1.0, facecolor="#ffffff")
    FigureCanvasAgg(drawn)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    drawn.savefig(paths[0], dpi=dots, metadata={"Software": None})
    with Image.open(paths[0]) as image:  # few colours: a third of the size, and no difference to be seen
        # Coverage, not frequency, chooses the colours: a thin line keeps its own among many greys.
        few = image.convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(paths[0], optimize=True)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawn.savefig(paths[1], dpi=50, metadata={"Date": None, "Creator": None})
    return paths


def _recolour(drawn: Figure) -> None:
    for artist in drawn.findobj():
        for part in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            getter, setter = getattr(artist, f"get_{part}", None), getattr(artist, f"set_{part}", None)
            if getter is None or setter is None:
                continue
            was = getter()
            if was is None or (isinstance(was, str) and was in ("none", "auto")) or np.size(was) == 0:
                continue
            rgba = to_rgba_array(was)
            now = [to_rgba(_LIGHT.get(to_hex(one), to_hex(one)), one[3]) for one in rgba]
            if not np.allclose(rgba, now):
                setter(now[0] if len(now) == 1 else now)
