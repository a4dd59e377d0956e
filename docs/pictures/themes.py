"""Colours of the pictures on a light and on a dark page, and axes without a box."""

from __future__ import annotations

from matplotlib.axes import Axes

THEMES = {
    "light": {"ink": "#1f2328", "muted": "#59636e", "grid": "#d8dee4", "exact": "#1f2328", "CG": "#c2410c",
              "RR-CG": "#0969da"},
    "dark": {"ink": "#f0f6fc", "muted": "#9198a1", "grid": "#2f363d", "exact": "#f0f6fc", "CG": "#fb923c",
             "RR-CG": "#58a6ff"},
}  # fmt: skip


def plain_axes(axes: Axes, theme: str) -> Axes:
    """Transparent, two spines, and a light grid."""
    color = THEMES[theme]
    axes.patch.set_alpha(0.0)
    axes.grid(True, color=color["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=color["muted"], labelsize=9, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(color["muted"])
    return axes
