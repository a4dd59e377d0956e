"""Small tables as HTML, for notebooks: escaped text without colours, so that it reads in light and in dark."""

from __future__ import annotations

import html
from collections.abc import Sequence

ENDS = 5  # rows of either end of a long table that are shown
_LEFT, _RIGHT = "text-align:left", "text-align:right"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], title: str = "", note: str = "") -> str:
    """A table whose first column names the row; wide ones scroll."""
    top = "".join(_cell("th", name, _LEFT if i == 0 else _RIGHT) for i, name in enumerate(head))
    body = "".join(
        f"<tr>{_cell('th', row[0], _LEFT)}{''.join(_cell('td', cell, _RIGHT) for cell in row[1:])}</tr>" for row in rows
    )
    inner = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return _framed(inner, title, note)


def pairs(rows: Sequence[tuple[str, object]], title: str = "", note: str = "") -> str:
    """Names and values, one pair a line."""
    body = "".join(f"<tr>{_cell('th', name, _LEFT)}{_cell('td', value, _LEFT)}</tr>" for name, value in rows)
    return _framed(f"<table><tbody>{body}</tbody></table>", title, note)


def ends(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The first and the last rows of a long table, with a row of dots between them."""
    if len(rows) <= 2 * ENDS + 1:
        return list(rows)
    return [*rows[:ENDS], ["…"] * len(rows[0]), *rows[-ENDS:]]


def text(words: str) -> str:
    """Words as they are, whatever characters they hold."""
    return html.escape(words)


def _cell(tag: str, text: object, style: str) -> str:
    return f'<{tag} style="{style}">{html.escape(str(text))}</{tag}>'


def _framed(inner: str, title: str, note: str) -> str:
    above = f"<p><strong>{html.escape(title)}</strong></p>" if title else ""
    below = f"<p><small>{html.escape(note)}</small></p>" if note else ""
    return f'<div>{above}<div style="overflow-x:auto">{inner}</div>{below}</div>'
