"""rtgp demo: the elevation of US airports by Cholesky, CG and RR-CG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import typer

from rtgp.cli import options
from rtgp.cli.compare import run_methods
from rtgp.cli.scoring import HEAD, Score, note
from rtgp.cli.terminal import afterwards, say, show_table
from rtgp.datasets import Dataset, load
from rtgp.errors import InputError, SettingError
from rtgp.report import Report, Surface, Table, write_report
from rtgp.report.picture import degrees_aspect, grid_over
from rtgp.storage import writing

METHODS = ["cholesky", "cg", "rr-cg"]
# Least NLL per point on the validation part (1910 airports; trained on POINTS airports by Cholesky) for every split:
# seed   matern12  matern32  matern52     rbf
#    0     -0.111    -0.036    -0.002   0.081
#    1     -0.164    -0.129    -0.036   0.081
#    2     -0.222    -0.106    -0.063   0.006
# The test part had no say in it. 2500 training airports give the same order.
KERNEL = "matern12"
DTYPE = "float64"  # begun in float32, CG on 2500 airports had to be trained again: little noise beside the signal
REACH = 0.8  # degrees from the nearest airport beyond which the map stays blank: sea, Canada, Mexico
MAP_WIDTH, MAP_HEIGHT = 170, 85
TEST_POINTS = 2000
POINTS, STEPS = 1500, 30  # 130 to 165 s of processor time with one thread, mostly RR-CG's


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for report.html; made if missing.")
    ] = Path("demo-output"),
    points: Annotated[int, typer.Option(min=50, help="Airports to learn from.")] = POINTS,
    steps: Annotated[int, typer.Option(min=1, help="Most steps of training.")] = STEPS,
    seed: options.Seed = 0,
) -> None:
    """Predict the elevation of US airports from their place, by three methods; write a report with maps.

    Takes one to three minutes on two cores and needs no file and no network.

    [bold]Example[/bold]

    \b
    rtgp demo && xdg-open demo-output/report.html
    """
    if output.exists() and not output.is_dir():
        raise InputError(f"The output {str(output)!r} is a file. Expected the name of a folder.")
    airports = load("us-airports")
    parts = airports.split(seed, standardise=False)
    if points > len(parts.train):
        raise SettingError(f"The option --points must be at most {len(parts.train)}. Got {points}.")
    train = parts.train.subset(points, seed)
    test = parts.test.subset(min(TEST_POINTS, len(parts.test)), seed)
    settings = options.regressor_settings(KERNEL, steps, None, seed, "auto", DTYPE)
    with writing("The report", output):
        output.mkdir(parents=True, exist_ok=True)  # now: a place that cannot be made would waste the training
    scores, problem = run_methods(METHODS, train, test, settings)
    head = [*HEAD[:2], "lengthscales (lon, lat in degrees)", *HEAD[2:]]
    rows = [[*one.cells()[:2], _lengthscales(one, train), *one.cells()[2:]] for one in scores]
    words = f"Elevation in feet of US airports: learned from {len(train)}, judged on {len(test)} others"
    show_table(head, rows, words, note(scores))
    if problem is not None:
        raise problem
    with afterwards("The table above is complete", "its report"):
        page = Report(
            title="Elevation of US airports",
            summary=f"{words}. A Gaussian process with a Matérn-1/2 kernel over longitude and latitude, trained by "
            "exact Cholesky, by plain conjugate gradients, and by conjugate gradients truncated by Russian roulette.",
            runs=[one.run() for one in scores],
            table=Table(head, rows, note(scores)),
            picture=_maps(scores[-1].regressor, train, airports),
            settings={"data": "us-airports", "seed": seed, "training rows": points, "test rows": len(test), **settings},
            command=f"rtgp demo --points {points} --steps {steps} --seed {seed}",
            target="elevation (ft)",
        )
        say(f"Report written to {write_report(output / 'report.html', page)}.")


def _lengthscales(one: Score, train: Dataset) -> str:
    """In degrees: the regressor works with standardised inputs."""
    found = [value for name, value in one.regressor.hyperparameters_.items() if "lengthscale" in name]
    return ", ".join(f"{value * spread:.2f}" for value, spread in zip(found, train.X.std(axis=0), strict=True))


def _maps(regressor: Any, train: Dataset, airports: Dataset) -> Surface:
    longitude, latitude, grid = grid_over(airports.X, MAP_WIDTH, MAP_HEIGHT)
    near = _near(grid, airports.X)
    mean, std = (np.full(len(grid), np.nan) for _ in range(2))
    mean[near], std[near] = regressor.predict(pd.DataFrame(grid[near], columns=list(train.feature_names)), True)
    shape = (MAP_HEIGHT, MAP_WIDTH)
    return Surface(
        x=longitude,
        y=latitude,
        mean=mean.reshape(shape),
        std=std.reshape(shape),
        points=train.X,
        x_name="longitude",
        y_name="latitude",
        value_name="elevation (ft)",
        aspect=degrees_aspect(latitude),
        note=f"By RR-CG. Blank: more than {REACH:g} degrees from all {len(airports)} airports, learned from or not.",
    )


def _near(grid: npt.NDArray[np.float64], airports: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which grid points have an airport within REACH; in parts, to bound the memory."""
    near = [
        (((part[:, None] - airports[None]) ** 2).sum(axis=2) < REACH**2).any(axis=1)
        for part in np.array_split(grid, max(1, len(grid) // 200))
    ]
    return np.concatenate(near)
