"""The help fits into 80 characters, leaves no option out, and has room for its words."""

from __future__ import annotations

import pytest
import typer.main
from typer.testing import CliRunner

from rtgp._cli import app

COMMANDS = typer.main.get_command(app).commands


def shown(*args: str) -> list[str]:
    result = CliRunner().invoke(app, [*args, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(name: str) -> None:
    lines = shown(name)
    # Examples are there to be copied: they stand on one line each.
    assert all(len(line) <= 80 for line in lines if not line.startswith(("  rtgp ", "  torchrun ")))
    assert all(len(line) <= 84 for line in lines)
    text = "\n".join(lines)
    assert "[bold]" not in text
    assert "\b" not in text
    for option in COMMANDS[name].params:
        if option.param_type_name == "option":
            assert all(flag in text for flag in (*option.opts, *option.secondary_opts))
        elif option.param_type_name == "argument":
            assert option.name.upper() in text


def test_the_program_names_its_commands_and_exit_codes() -> None:
    text = "\n".join(shown())
    for name in COMMANDS:
        assert f"\n  {name} " in text
    assert "Exit codes" in text
    assert "rtgp demo" in text


def test_options_stand_where_they_belong() -> None:
    lines = shown("fit")
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Arguments:", "The table:", "The result:", "The model:", "How the table is read:", "Options:"]
