"""The program `rtgp`: its commands and its options that stand before any command."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from rtgp._cli.compare import compare
from rtgp._cli.demo import demo
from rtgp._cli.diagnose import diagnose
from rtgp._cli.fit import fit
from rtgp._cli.help import Command, Program
from rtgp._cli.info import info
from rtgp._cli.predict import predict
from rtgp._cli.reproduce import reproduce
from rtgp._cli.terminal import command, set_debug
from rtgp._provenance import __version__

app = typer.Typer(
    name="rtgp",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failure (a full disk, too little memory, or unexpected), 2 bad input. Results go to "
    "the standard output, all else to the standard error.",
)
for function in (demo, fit, predict, compare, info, diagnose, reproduce):
    app.command(cls=Command)(command(function))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rtgp {__version__}")
        raise typer.Exit()


@app.callback()
def _program(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Gaussian processes learned without the bias of truncated solvers.

    [bold]Begin with[/bold]

    \b
    rtgp demo
    rtgp fit houses.csv --target price --output model/
    rtgp predict model/ new.csv --output prices.csv --std
    """
    set_debug(debug)


def main() -> None:
    """Entry point; --debug may stand anywhere."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not know every character of a column's name
            stream.reconfigure(errors="backslashreplace")
    args = sys.argv[1:]
    if "--debug" in args:
        args = ["--debug", *(arg for arg in args if arg != "--debug")]
    app(args=args, prog_name="rtgp")
