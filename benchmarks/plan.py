"""What a training on many cards would cost, before renting them.

python benchmarks/plan.py --points 1e7 --dim 10 --gpus 64 --gpu h200
python benchmarks/plan.py --points 1e6 --dim 3 --gpus 8 --iterations 100
"""

from __future__ import annotations

import math
from typing import Annotated

import typer
from cost import MACHINES, Cost, Workload, cost, crossover

from rtgp._cli.options import check_choice
from rtgp._cli.terminal import command, show_pairs, show_table
from rtgp.errors import SettingError

_NOTE = (
    "Simulated, not measured: local speed as measured on one card, links as their makers state them (NVLink at 450 "
    "GB/s within a node of 8, 50 GB/s for each card beyond), nothing overlapped, and as many iterations whatever the "
    "rank of the preconditioner. docs/distributed.md has the assumptions."
)


def plan(
    points: Annotated[str, typer.Option(metavar="N", help="Points to learn from, such as 1e7.")],
    dim: Annotated[int, typer.Option(min=1, metavar="D", help="Inputs.")],
    gpus: Annotated[int, typer.Option(min=1, help="Cards, one process each.")] = 1,
    gpu: Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(MACHINES)}.")] = "h200",
    iterations: Annotated[int, typer.Option(min=1, help="Of conjugate gradients in one estimate.")] = 50,
    steps: Annotated[int, typer.Option(min=1, help="Of training.")] = 20,
    probes: Annotated[int, typer.Option(min=1, help="Probe vectors of an estimate.")] = 10,
    rank: Annotated[
        int | None, typer.Option(min=1, help="Of the preconditioner; by default what pays and fits.")
    ] = None,
) -> None:
    """Predict memory and time of a training on many cards, before renting them."""
    check_choice("gpu", gpu, tuple(MACHINES))
    work, machine = Workload(_count(points), dim, probes, iterations, steps, rank), MACHINES[gpu]
    found = cost(work, machine, gpus)
    begins = crossover(work, machine)
    wanted = math.isqrt(2 * work.n * work.columns)
    limited = f" (memory allows no more; {wanted:,} would pay)" if rank is None and found.rank < wanted else ""
    show_pairs(
        [
            ("points", f"{work.n:,}, {work.d} inputs, {work.columns} right-hand sides"),
            ("cards", f"{gpus:,} x {gpu}, {found.link} between them" if gpus > 1 else f"1 x {gpu}"),
            ("K", "stored" if found.stored else "computed within each product"),
            ("memory of a card", f"{_gb(found.bytes)} of {_gb(machine.memory)}" + ("" if found.fits else ": TOO MUCH")),
            ("  K or its points", _gb(found.kernel_bytes)),
            ("  data and gradients", _gb(found.point_bytes)),
            ("  vectors", _gb(found.vector_bytes)),
            ("  preconditioner", f"{_gb(found.factor_bytes)}, rank {found.rank:,}{limited}"),
            ("one iteration", f"{_seconds(found.compute)} computing, {_seconds(found.communication)} communicating"),
            ("one gradient", _seconds(found.gradient)),
            ("one preconditioner", _seconds(found.build)),
            ("training", f"{_seconds(found.training)} for {steps} steps of {iterations} iterations"),
            ("communication dominates", f"from {begins:,} cards on" if begins else "never, up to 2^20 cards"),
        ]
    )
    sizes = sorted({2**power for power in range(11)} | {gpus})
    rows = [_row(cost(work, machine, size)) for size in sizes]
    show_table(["cards", "memory", "fits", "iteration", "of it communication", "training"], rows, note=_NOTE)


def _row(found: Cost) -> list[str]:
    share = found.communication / found.iteration
    time = _seconds(found.training) if found.fits else "-"
    return [
        f"{found.ranks:,}",
        _gb(found.bytes),
        "yes" if found.fits else "no",
        _seconds(found.iteration),
        f"{share:.1%}",
        time,
    ]


def _count(points: str) -> int:
    try:
        number = float(points)
    except ValueError:
        number = math.nan
    if not 1.0 <= number <= 1e12 or number != int(number):
        raise SettingError(f"The option --points must be a whole number from 1, such as 200000 or 1e7. Got {points!r}.")
    return int(number)


def _gb(number: float) -> str:
    return f"{number / 1e9:.3g} GB"


def _seconds(time: float) -> str:
    if time < 1.0:
        return f"{time * 1e3:.3g} ms"
    if time < 120.0:
        return f"{time:.3g} s"
    return f"{time / 60:.3g} min" if time < 7200.0 else f"{time / 3600:.3g} h"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(command(plan))

if __name__ == "__main__":
    app()
