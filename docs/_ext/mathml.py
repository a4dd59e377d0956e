"""Formulas as MathML, made when the pages are built: no script, nothing fetched from elsewhere.

docutils has the converter. It lacks some of TeX's short forms, which are written out first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

_log = logging.getLogger(__name__)
_FRACTION = re.compile(r"\\[td]?frac(?![a-zA-Z])")
_ACCENT = re.compile(r"\\(?:hat|tilde|bar)(?![a-zA-Z])")
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)")


def write_out(tex: str) -> str:
    r"""The same formula in a form that docutils reads as TeX does: braces around the arguments of every fraction
    (`\frac12` would be 12 over what comes next), accents apart from their indices (which would stand below the letter),
    no `\dots`, `\big` and `\Big`."""
    tex = re.sub(r"\\dots(?![a-zA-Z])", r"\\ldots", tex)
    tex = re.sub(r"\\([bB]ig)(?=[(\[])", r"\\\1l", tex)
    tex = re.sub(r"\\([bB]ig)(?=[)\]])", r"\\\1r", tex)
    tex = _rewrite(tex, _ACCENT, 1, lambda command, inner: f"{{{command}{{{inner}}}{{}}}}")
    return _rewrite(tex, _FRACTION, 2, lambda command, top, bottom: f"{command}{{{top}}}{{{bottom}}}")


def _rewrite(tex: str, commands: re.Pattern[str], count: int, made: Callable[..., str]) -> str:
    """Each of the commands and its arguments as `made` makes them, from within."""
    out, place = "", 0
    while found := commands.search(tex, place):
        arguments, end = [], found.end()
        for _ in range(count):
            argument, end = _argument(tex, end)
            arguments.append(_rewrite(argument, commands, count, made))
        out += tex[place : found.start()] + made(found[0], *arguments)
        place = end
    return out + tex[place:]


def _argument(tex: str, place: int) -> tuple[str, int]:
    """TeX's next argument, without its braces, and where it ends: a group, a command or one character."""
    while tex[place].isspace():
        place += 1
    if tex[place] == "\\":
        command = _COMMAND.match(tex, place)
        assert command is not None
        return command[0], command.end()
    if tex[place] != "{":
        return tex[place], place + 1
    depth, end = 0, place
    while True:
        depth += {"{": 1, "}": -1}.get(tex[end], 0) * (tex[end - 1] != "\\")
        end += 1
        if depth == 0:
            return tex[place + 1 : end - 1], end


def convert(tex: str, block: bool, where: nodes.Node) -> str:
    """MathML of a formula; what cannot be converted is a warning, and so an error of `make docs`."""
    try:
        return latex2mathml.tex2mathml(write_out(tex), as_block=block)
    except (MathError, IndexError) as error:
        _log.warning("formula %r: %s", tex, error, location=where)
        return ""


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(convert(node.astext(), False, node))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-block">{convert(node.astext(), True, node)}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
