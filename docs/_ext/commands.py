"""The commands of the shell as a page, read from the program itself."""

from __future__ import annotations

import re
from typing import Any

import typer.main

from rtgp._cli import app


def commands_page() -> str:
    """reStructuredText: one section for each command."""
    program: Any = typer.main.get_command(app)
    lines = ["The command line", "================", "", _plain(program.epilog or ""), ""]
    for name, command in program.commands.items():
        lines += _section(name, command)
    return "\n".join(lines)


def _section(name: str, command: Any) -> list[str]:
    title = f"rtgp {name}"
    words, examples = _split(command.help or "")
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    usage = " ".join([title, *(one.name.upper() for one in arguments), "[OPTIONS]"])
    lines = [title, "-" * len(title), "", words, "", "::", "", f"    {usage}", ""]
    for one in arguments:
        lines += [f"``{one.name.upper()}``", f"    {_plain(one.help or '')}", ""]
    for one in options:
        lines += [f"``{_flags(one)}``", f"    {_plain(one.help or '')}{_default(one)}", ""]
    if examples:
        lines += ["Examples::", "", *(f"    {line}" for line in examples), ""]
    return lines


def _split(text: str) -> tuple[str, list[str]]:
    """The words, and the examples after them."""
    words, _, examples = text.partition("[bold]Example")
    lines = [line.strip() for line in examples.split("\n")]
    return _plain(words.strip()), [line for line in lines if line.startswith(("rtgp ", "torchrun "))]


def _flags(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len)) + "".join(f" / {other}" for other in option.secondary_opts)
    if option.is_flag:
        return names
    return f"{names} {option.metavar or _kind(option)}"


def _kind(option: Any) -> str:
    """What stands for its value: a number where its name or its default says so."""
    return "NUMBER" if isinstance(option.default, (int, float)) or getattr(option, "min", None) is not None else "VALUE"


def _default(option: Any) -> str:
    value = option.default
    if value is None or value is False or callable(value) or option.required:
        return ""
    return f" Default: ``{value}``."


def _plain(text: str) -> str:
    """Without rich's markup, and safe as reStructuredText."""
    text = re.sub(r"\[/?bold\]", "", text).replace("\b", "")
    return re.sub(r"([*|\\])", r"\\\1", text).replace("`", "``")
