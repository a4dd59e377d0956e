"""The help of the program: two columns that fit into 80 characters, options by what they are about."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

TABLE, MODEL, RESULT, READING = "The table", "The model", "The result", "How the table is read"
_FIRST = 26  # characters of the column of names; longer ones stand on a line of their own
_OTHERS = "Options"


class Command(TyperCommand):
    """A command whose help is plain text."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, words, arguments, and options by their panels."""
        _usage_and_words(self, ctx, formatter)
        arguments: list[Any] = [one for one in self.params if one.param_type_name == "argument"]
        rows = {"Arguments": [(one.name.upper(), one.help or "") for one in arguments]}
        for one in self.get_params(ctx):
            if one.param_type_name == "option" and not getattr(one, "hidden", False):
                panel = getattr(one, "rich_help_panel", None) or _OTHERS
                rows.setdefault(panel, []).append((_names(one), _words(one)))
        rows[_OTHERS] = rows.pop(_OTHERS, [])  # last
        for title, lines in rows.items():
            _section(formatter, title, lines)
        self.format_epilog(ctx, formatter)


class Program(TyperGroup):
    """The program itself: its commands in the order in which they are met."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, words, commands and options."""
        _usage_and_words(self, ctx, formatter)
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        _section(formatter, "Commands", [(name, _first(one.help or "")) for name, one in found if one is not None])
        options = [one for one in self.get_params(ctx) if not getattr(one, "hidden", False)]
        _section(formatter, "Options", [(_names(one), _words(one)) for one in options])
        self.format_epilog(ctx, formatter)


def _usage_and_words(command: Any, ctx: Any, formatter: Any) -> None:
    pieces = command.collect_usage_pieces(ctx)
    formatter.write_usage(ctx.command_path, " ".join(piece.strip("{}").upper() for piece in pieces))
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(plain(command.help or ""))


def plain(text: str) -> str:
    """Without rich's markup."""
    return re.sub(r"\[/?bold\]", "", text)


def _first(text: str) -> str:
    """The first sentence, on one line."""
    return " ".join(plain(text).split("\n\n")[0].split()).rstrip(".")


def _names(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len)) + "".join(f" / {other}" for other in option.secondary_opts)
    if option.is_flag:
        return names
    return f"{names} {option.metavar or 'VALUE'}"


def _words(option: Any) -> str:
    words = option.help or ""
    default = option.default
    if default is None or isinstance(default, bool) or callable(default) or default == "":
        return words
    return f"{words} [default: {default}]"


def _section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows, col_max=_FIRST)
