"""Between the commands and the person: consoles, warnings and errors in one sentence, exit codes."""

from __future__ import annotations

import functools
import json
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rtgp._memory import enough_memory
from rtgp.distributed import is_on_every_rank, on_every_rank
from rtgp.errors import OutOfMemoryError, RTGPError, StorageError

P = ParamSpec("P")
R = TypeVar("R")

BAD_INPUT, FAILURE = 2, 1


class AfterwardsError(RTGPError):
    """The work is done and kept. What was to follow it, such as a report, failed."""


_NOT_THE_INPUT = (StorageError, OutOfMemoryError, AfterwardsError)  # the same command may work elsewhere
_debug: ContextVar[bool] = ContextVar("rtgp_debug", default=False)
_rank: ContextVar[int] = ContextVar("rtgp_rank", default=0)


def set_rank(rank: int) -> None:
    """Which of several processes this is: only the first speaks, but for errors of a process's own."""
    _rank.set(rank)


def set_debug(on: bool) -> None:
    """Show tracebacks from here on."""
    _debug.set(on)


def on_terminal() -> bool:
    """Whether somebody watches the standard error; progress is shown only then."""
    return sys.stderr.isatty() and _rank.get() == 0


def say(words: str) -> None:
    """One line on the standard error, which leaves the standard output to results."""
    if _rank.get() == 0:
        _print(words)


def say_of_rank(words: str) -> None:
    """What concerns this process alone, said also where it is not the first."""
    _print(words if _rank.get() == 0 else f"rtgp: rank {_rank.get()}: {words.removeprefix('rtgp: ')}")


def _print(words: str) -> None:
    print(one_line(" ".join(words.split())), file=sys.stderr, flush=True)  # noqa: T201


def command(function: Callable[P, R]) -> Callable[P, R]:
    """A command whose failures are one sentence and an exit code: 2 for bad input, 1 for a full disk, a lack of memory
    and anything unexpected."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with _plain_warnings(), enough_memory("The work", "Take fewer rows, or a machine with more memory"):
                return function(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except RTGPError as error:
            code = FAILURE if isinstance(error, _NOT_THE_INPUT) else BAD_INPUT
            raise _fail(str(error), code, is_on_every_rank(error)) from error
        except BrokenPipeError:  # the reader of our output has gone: nothing to say, and nobody to say it to
            raise
        except Exception as error:
            raise _fail(_unexpected(error), FAILURE) from error

    return guarded


@contextmanager
def afterwards(done: str, following: str) -> Iterator[None]:
    """A context for what follows finished work: an error in it says that the work is kept.

    `done` is the finished work, as "The model was saved to 'm'". `following` is what is made here, as "its report
    'r.html'".
    """
    try:
        with enough_memory("It", "Take a machine with more memory"):
            yield
    except BrokenPipeError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, RTGPError) else _unexpected(error)
        kept = AfterwardsError(f"{done}, but {following} could not be made: {why}")
        raise (on_every_rank(kept) if is_on_every_rank(error) else kept) from error


def _unexpected(error: Exception) -> str:
    what = f"unexpected {type(error).__name__}: {error}"
    return what if _debug.get() else f"{what} (--debug shows where)"


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", note: str = "") -> None:
    """A table on the standard output; never cut to the width of a pipe."""
    console = Console()
    # As Text everywhere: in a string, rich would read "[bold]" as markup, and "[/x]" as an error.
    heading = Text(one_line(title)) if title else None
    table = Table(box=box.SIMPLE_HEAD, title=heading, title_justify="left", title_style="bold")
    for i, name in enumerate(head):
        table.add_column(Text(name), justify="left" if i == 0 else "right", no_wrap=not console.is_terminal)
    for row in rows:
        table.add_row(*map(Text, row))
    if not console.is_terminal:
        console = Console(width=max(console.width, 200))
    console.print(table)
    if note:
        console.print(Text(note, style="dim"), soft_wrap=True)


def show_pairs(rows: Sequence[tuple[str, str]], flush: bool = False) -> None:
    """Names and values on the standard output, one pair a line, whatever characters they hold.

    flush: whether they are to be seen before the work goes on.
    """
    if _rank.get() != 0:
        return
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {one_line(value)}")
    if flush:
        sys.stdout.flush()


def show_json(content: Any) -> None:
    """One JSON document on the standard output; what is no number is null."""
    if _rank.get() == 0:
        typer.echo(json.dumps(_plain(content), indent=1, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)


def one_line(words: str) -> str:
    """Without what moves the cursor of a terminal: a column may be called anything."""
    return "".join(character if character.isprintable() else " " for character in words)


def _fail(words: str, code: int, everywhere: bool = False) -> typer.Exit:
    if _debug.get():
        traceback.print_exc()
    (say if everywhere else say_of_rank)(f"rtgp: error: {words}")
    return typer.Exit(code)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings meant for the user as one sentence each, once; those for developers not at all."""
    seen: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            say(f"rtgp: warning: {message}")

    with warnings.catch_warnings():
        if not _debug.get():
            warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=UserWarning)
        warnings.showwarning = show
        yield
