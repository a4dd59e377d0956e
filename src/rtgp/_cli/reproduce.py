"""rtgp reproduce: the paper's figures, tables and theorems, run again and judged."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

import rtgp
from rtgp._cli import options
from rtgp._cli.terminal import FAILURE, say, show_pairs, show_table
from rtgp._extras import needs
from rtgp.errors import NotInstalledError, SettingError

OUTPUT = Path("reproduction")
PACKAGE = "reproduction"


def reproduce(
    item: Annotated[str, typer.Argument(help="list, all, docs, or an item such as fig1 (see list).")],
    quick: Annotated[bool, typer.Option("--quick", help="A small version with the same claims: --size quick.")] = False,
    size: Annotated[
        str, typer.Option(metavar="NAME", help="quick, reduced (minutes on two cores) or full (as in the paper).")
    ] = "full",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:0.")] = "cpu",
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where results, figures and report.html go.")
    ] = None,
    data_dir: options.DataDir = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="Only cells with these settings, e.g. set=pol,bike. May be repeated."),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop after this time; the same command goes on later.")
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Processes that run cells side by side, on one card too. Times mean little then."
        ),
    ] = 1,
) -> None:
    """Run the paper's experiments again and say what comes out.

    Works in a clone of the repository, whose folder "reproduction" has the experiments. Cells that have rows in the
    output folder are not run again. The exit code is 1 if a check or a cell fails.

    [bold]Examples[/bold]

    \b
    rtgp reproduce list
    rtgp reproduce fig1 --quick --data-dir data/
    rtgp reproduce all --quick --output quick/
    rtgp reproduce table1 --device cuda --workers 6 --time-limit 570 --only split=10
    """
    _find_package()
    with needs("report", "`rtgp reproduce`"):
        import reproduction as paper

    if item == "list":
        show_pairs([(spec.name, f"{spec.title}: {spec.claim}") for spec in paper.ITEMS.values()])
        return
    if item == "docs":
        from reproduction.docs import document

        typer.echo(document(output or OUTPUT), nl=False)
        return
    chosen = "quick" if quick else options.check_choice("size", size, paper.SIZES)
    folder = output or (OUTPUT / "quick" if quick else OUTPUT)
    specs = list(paper.ITEMS.values()) if item == "all" else [paper.item(item)]
    setting = paper.Setting(
        device=device,
        size=chosen,  # type: ignore[arg-type]
        data_dir=data_dir,
        checkpoints=folder / "checkpoints",
        time_is_up=paper.until(time_limit),
    )
    failures = sum(paper.run_cells(spec, setting, folder, _filters(only or []), say, workers) for spec in specs)
    outcomes = [paper.conclude(spec, folder, setting.size) for spec in specs]
    page = paper.publish(outcomes, folder, setting.size, shlex.join(["rtgp", *sys.argv[1:]]))
    rows = [
        [
            one.spec.name,
            f"{len(one.verdict.checks) - len(one.verdict.failed)}/{len(one.verdict.checks)}",
            one.verdict.status,
        ]
        for one in outcomes
    ]
    show_table(["item", "checks passed", "verdict"], rows)
    for one in outcomes:
        for check in one.verdict.failed:
            typer.echo(f"{one.spec.name}: does not hold: {check.name} ({check.words})")
    say(f"Report written to {page}.")
    if failures or any(one.verdict.failed for one in outcomes):
        raise typer.Exit(FAILURE)


def _find_package() -> None:
    """Put the root of the checkout that rtgp runs from on Python's path, where the package `reproduction` lies."""
    root = Path(rtgp.__file__).parents[2]
    if not (root / "src" / "rtgp").is_dir() or not (root / PACKAGE / "__init__.py").is_file():
        raise NotInstalledError(
            "`rtgp reproduce` runs from a clone of rtgp's repository only, since an installed rtgp does not have the "
            "folder 'reproduction': clone it and run `pip install -e '.[all]'` there."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # processes that are spawned take it over


def _filters(only: list[str]) -> dict[str, str]:
    found = {}
    for one in only:
        name, equals, values = one.partition("=")
        if not equals or not name or not values:
            raise SettingError(f"The option --only must be NAME=VALUES, such as set=pol,bike. Got {one!r}.")
        found[name] = values
    return found
