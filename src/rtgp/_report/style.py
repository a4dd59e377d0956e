"""Figures as inline SVG that takes its colours from the page, so that one file looks right in light and in dark.

Figures are drawn in marker colours, which `to_svg` turns into CSS variables of the page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure, SubFigure


@dataclass(frozen=True)
class Palette:
    """Colours of a figure, as matplotlib reads them."""

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    background: str = "none"


# Colours that stand for variables of the page, which to_svg puts in their place.
INK, MUTED, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
SERIES = ("#0a0101", "#0a0202", "#0a0303", "#0a0404", "#0a0505", "#0a0606", "#0a0707", "#0a0808")
MARKERS = Palette(INK, MUTED, GRID, SERIES)
# On white, for figures that are handed out: the page's own in its light scheme.
ON_WHITE = Palette(
    "#1a1d21",
    "#5c6570",
    "#dfe3e8",
    ("#1f6fb4", "#c4561a", "#1c8a5a", "#8a4fb0", "#a3780f", "#b23a5c", "#0f7f8c", "#6b6f76"),
    background="#ffffff",
)
_palette: ContextVar[Palette] = ContextVar("rtgp_palette", default=MARKERS)
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", PAPER: "--paper"} | {
    color: f"--series-{i}" for i, color in enumerate(SERIES, 1)
}
Where = Figure | SubFigure  # a figure of its own, or a part of one
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_LONGEST_LABEL = 48  # characters: more would leave no room for the axes
_TAG = re.compile(r"<[^>]*>")
_REFERENCE = re.compile(r'(\bid="|url\(#|xlink:href="#)')
_SIZE = re.compile(r' (?:width|height)="[^"]*"')
WIDTH, HEIGHT = 4.6, 3.1  # inches; small, so that the text stays readable on a phone


@contextmanager
def drawn_with(palette: Palette) -> Iterator[None]:
    """Figures that are made within have these colours."""
    before = _palette.set(palette)
    try:
        yield
    finally:
        _palette.reset(before)


def ink() -> str:
    """The colour of text."""
    return _palette.get().ink


def muted() -> str:
    """The colour of what stands back."""
    return _palette.get().muted


def series(i: int) -> str:
    """The colour of run i."""
    colors = _palette.get().series
    return colors[i % len(colors)]


def line_width(i: int) -> float:
    """Later runs are drawn thinner, so that equal curves are all seen."""
    return (3.0, 2.0, 1.2)[min(i, 2)]


def plain(text: object) -> str:
    """Text that matplotlib shows as it is: no formulas between dollar signs, nothing that XML forbids, and no more than
    fits beside a figure. The page has the whole of it in words."""
    shown = printable(text)
    if len(shown) > _LONGEST_LABEL:
        shown = shown[: _LONGEST_LABEL - 1].rstrip() + "…"
    return shown.replace("$", r"\$")


def printable(text: object) -> str:
    """Without the control characters that XML forbids."""
    return "".join(character if character.isprintable() else " " for character in str(text))


def figure(width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """An empty figure."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(made)
    made.patch.set_facecolor(_palette.get().background)
    return made


def axes(where: Where, title: str = "", x: str = "", y: str = "", position: tuple[int, int, int] = (1, 1, 1)) -> Axes:
    """Axes in the report's style: light grid, no box."""
    made = where.add_subplot(*position)
    made.patch.set_alpha(0.0)
    made.grid(True, color=_palette.get().grid, linewidth=0.8)
    made.set_axisbelow(True)
    for side, spine in made.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(muted())
    made.tick_params(colors=muted(), labelsize=8.5, length=3)
    if title:
        made.set_title(plain(title), fontsize=9.5, color=ink(), loc="left")
    made.set_xlabel(plain(x), fontsize=9, color=ink())
    made.set_ylabel(plain(y), fontsize=9, color=ink())
    return made


def legend(of: Axes, **settings: Any) -> None:
    """A legend without a box, where there is something to tell apart."""
    if len(of.get_legend_handles_labels()[0]) > 1:
        of.legend(frameon=False, fontsize=8.5, labelcolor=ink(), **settings)


def to_svg(drawn: Where, key: str, label: str) -> Markup:
    """The figure as SVG to be placed in the page; `key` keeps its ids apart from those of other figures."""
    buffer = io.StringIO()
    # svg.fonttype "none" keeps text as text: it is selectable, read aloud, and follows the page's font.
    # The font that matplotlib measures with need not know every script: the browser's will.
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key, "path.simplify": True}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        warnings.filterwarnings("ignore", r"Matplotlib currently does not support .* natively", UserWarning)
        drawn.figure.savefig(buffer, format="svg", metadata=_NO_METADATA, facecolor="none")
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Tags only, which matplotlib closes by the first ">" (it escapes those in attributes): the text between them is the
    # user's and stays as it is. Functions, not templates, in which a backslash would mean something.
    text = _TAG.sub(lambda tag: _adapted(tag[0], key), text)
    root, rest = text[: text.index(">")], text[text.index(">") :]
    root = _SIZE.sub("", root).removeprefix("<svg ")
    name = Markup.escape(printable(label))
    return Markup(f'<svg role="img" aria-label="{name}" {root}{rest}')  # matplotlib escapes its text


def _adapted(tag: str, key: str) -> str:
    """A tag with the colours of the page and with ids of its own."""
    for color, variable in _VARIABLES.items():
        tag = tag.replace(color, f"var({variable})")
    return _REFERENCE.sub(lambda found: f"{found[1]}{key}-", tag)
