"""rtgp demo: the elevation of US airports by Cholesky, by plain CG and by RR-CG, and what to see in it."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import typer
from sklearn.exceptions import ConvergenceWarning

from rtgp._cli import options
from rtgp._cli.files import frame_of
from rtgp._cli.scoring import Score, log_likelihood_per_point, score
from rtgp._cli.terminal import afterwards, on_terminal, say, show_table
from rtgp._estimator.regressor import GPRegressor
from rtgp._estimator.words import run_of
from rtgp._methods import CG, RRCG, AnyMethod, Cholesky
from rtgp._preconditioners import Neighbours
from rtgp._report import Report, Run, Surface, Table, write_report
from rtgp._report.grids import degrees_aspect, grid_over
from rtgp._storage import writing
from rtgp.datasets import Dataset, load
from rtgp.errors import InputError, SettingError

NEIGHBOURS = RRCG(preconditioner=Neighbours(32))  # places in two dimensions: neighbours are the best preconditioner
EXACT, TRUNCATED, ROULETTE = "Cholesky", "CG(20)", "RR-CG"
METHODS: dict[str, AnyMethod] = {EXACT: Cholesky(), TRUNCATED: CG(20), ROULETTE: NEIGHBOURS}
CG_STEPS = 6  # plain CG does not come to an end here: more steps lead it further away
# Of the named kernels Matérn-1/2 has the least NLL on other airports (the validation part), but its lengthscales are
# hardly determined: they may grow with the outputscale. Those of Matérn-3/2 are known to a few percent, so that a wrong
# one is seen.
KERNEL = "matern32"
DTYPE = "float64"  # in float32 CG had to be trained again: little noise beside the signal
REACH = 0.8  # degrees from the nearest airport beyond which the map stays blank: sea, Canada, Mexico
MAP_WIDTH, MAP_HEIGHT = 170, 85
TEST_POINTS = 1000
POINTS, STEPS = 2500, 30
HEAD = ["method", "lengthscales", "log lik. / n", "RMSE", "90% cov.", "seconds"]


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for report.html; made if missing.")
    ] = Path("demo-output"),
    points: Annotated[int, typer.Option(metavar="N", min=50, help="Airports to learn from.")] = POINTS,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Most steps of training.")] = STEPS,
    everything: Annotated[
        bool, typer.Option("--all/--no-all", help="Train RR-CG on all airports too, beyond what Cholesky does in time.")
    ] = True,
    seed: options.Seed = 0,
) -> None:
    """Predict the elevation of US airports from their place, by three methods; write a report with maps.

    Takes about a minute on two cores and needs no file and no network. The table says where plain CG goes wrong.

    [bold]Example[/bold]

    \b
    rtgp demo && xdg-open demo-output/report.html
    """
    if output.exists() and not output.is_dir():
        raise InputError(f"The output {str(output)!r} is a file. Expected the name of a folder.")
    airports = load("us-airports")
    train, whole, test = _parts(airports, points, seed)
    settings = options.regressor_settings(KERNEL, steps, None, seed, "auto", DTYPE)
    with writing("The report", output):
        output.mkdir(parents=True, exist_ok=True)  # now: a place that cannot be made would waste the training
    lines, problem = _run(train, whole if everything else None, test, settings)
    words = f"Elevation of US airports, learned from {points:,} and judged on {len(test):,} others"
    said, rows = look_at(lines), [one.cells for one in lines]
    show_table(HEAD, rows, words)
    typer.echo(f"{said}\n")
    typer.echo(NOTE)
    if problem is not None:
        raise problem
    with afterwards("The table above is complete", "its report"):
        page = Report(
            title="Elevation of US airports",
            summary=f"{words}. A Gaussian process with a Matérn-3/2 kernel over longitude and latitude, trained by "
            f"exact Cholesky, by plain conjugate gradients, and by conjugate gradients truncated by Russian roulette. "
            f"{said}",
            runs=[one.run for one in lines],
            table=Table(HEAD, rows, NOTE),
            picture=_maps([one for one in lines if one.rows == points][-1], train, airports),
            settings={"data": "us-airports", "seed": seed, "training rows": points, "test rows": len(test), **settings},
            command=f"rtgp demo --points {points} --steps {steps} --seed {seed}",
            target="elevation (ft)",
        )
        say(f"Report written to {write_report(output / 'report.html', page)}.")


@dataclass(frozen=True, eq=False)
class Trained:
    """A line of the table."""

    name: str
    rows: int  # trained on
    regressor: Any
    run: Run
    lengthscales: tuple[float, ...]  # in degrees
    log_likelihood: float  # per training point
    seconds: float
    cells: list[str]


NOTE = (
    "lengthscales: along longitude and latitude, in degrees. log lik. / n: log marginal likelihood per training "
    "airport at the hyperparameters found, by Cholesky where there is no ±, for the target in standard deviations. "
    "RMSE in feet; 90% cov.: airports inside their 90% interval. seconds of training. "
    f"{TRUNCATED} is stopped after {CG_STEPS} steps: more lead it further away."
)


def _parts(airports: Dataset, points: int, seed: int) -> tuple[Dataset, Dataset, Dataset]:
    """Some airports to learn from, all that are not judged, and those that are; the first are among the second."""
    shuffled, index = airports.subset(len(airports), seed), np.arange(len(airports))
    test, whole = shuffled.rows(index[:TEST_POINTS]), shuffled.rows(index[TEST_POINTS:])
    if points > len(whole):
        raise SettingError(f"The option --points must be at most {len(whole)}. Got {points}.")
    return whole.rows(np.arange(points)), whole, test


def _run(
    train: Dataset, whole: Dataset | None, test: Dataset, settings: dict[str, Any]
) -> tuple[list[Trained], Exception | None]:
    """Each line in turn. The second value is the error of one that failed, after lines that are worth their table."""
    done: list[Trained] = []
    try:
        for name, method in METHODS.items():
            _begins(f"{name}, {len(train):,} airports")
            with warnings.catch_warnings():
                most = settings
                if name == TRUNCATED:
                    most = {**settings, "steps": min(settings["steps"], CG_STEPS)}
                    warnings.simplefilter("ignore", ConvergenceWarning)  # that is what the line shows
                done.append(_line(score(name, train, test, most, method), train))
        if whole is not None:
            _begins(f"{ROULETTE}, {len(whole):,} airports")
            done.append(_line_of_all(whole, test, settings))
    except Exception as error:
        if not done:
            raise
        return done, error
    return done, None


def _begins(words: str) -> None:
    if on_terminal():
        say(f"{words} ...")


def _line(one: Score, train: Dataset) -> Trained:
    scales = _lengthscales(one.regressor, train)
    quality = [f"{one.rmse:.0f}", f"{one.coverage:.0%}"]
    cells = [one.method, _degrees(scales), f"{one.log_likelihood:.4f}", *quality, f"{one.seconds:.1f}"]
    return Trained(one.method, len(train), one.regressor, one.run(), scales, one.log_likelihood, one.seconds, cells)


def _line_of_all(whole: Dataset, test: Dataset, settings: dict[str, Any]) -> Trained:
    """RR-CG on all airports. Its means only: exact variances from so many airports take longer than the training."""
    name = f"{ROULETTE}, {len(whole):,}"
    regressor = GPRegressor(method=NEIGHBOURS, **settings)
    begin = time.perf_counter()
    regressor.fit(frame_of(whole), whole.y)
    seconds = time.perf_counter() - begin
    value, error = log_likelihood_per_point(regressor)
    scales, off = _lengthscales(regressor, whole), regressor.predict(frame_of(test)) - test.y
    likelihood, off_by = f"{value:.4f} ± {error:.4f}", f"{np.sqrt(np.mean(off**2)):.0f}"
    cells = [name, _degrees(scales), likelihood, off_by, "–", f"{seconds:.1f}"]
    return Trained(name, len(whole), regressor, run_of(regressor, name, None), scales, value, seconds, cells)


def look_at(lines: list[Trained]) -> str:
    """One sentence on what the table shows, from its own figures."""
    of = {one.name: one for one in lines}
    exact, last = of.get(EXACT), lines[-1]
    words = []
    if exact is not None and TRUNCATED in of:
        times = max(max(a / b, b / a) for a, b in zip(of[TRUNCATED].lengthscales, exact.lengthscales, strict=True))
        words.append(f"those of {TRUNCATED} are up to {times:.1f} times off those of {EXACT}, which is exact")
    if exact is not None and ROULETTE in of:
        found = of[ROULETTE]
        gap, ratio = exact.log_likelihood - found.log_likelihood, exact.seconds / found.seconds
        place = "within 0.001 of" if abs(gap) < 0.001 else f"{abs(gap):.4f} {'below' if gap > 0 else 'above'}"
        pace = f"{ratio:.1f} times as fast" if ratio >= 1.0 else f"in {1.0 / ratio:.1f} times its time"
        words.append(f"{ROULETTE} ends {place} its log likelihood per airport, {pace}")
    if exact is not None and last.rows > exact.rows:
        guess = exact.seconds * (last.rows / exact.rows) ** 3
        words.append(
            f"on {last.rows:,} airports it takes {last.seconds:.0f} s, where {EXACT} would take about "
            f"{float(f'{guess:.2g}'):,.0f} s (extrapolated by n^3, not run)"
        )
    return f"Look at the lengthscales: {'; '.join(words)}." if words else ""


def _degrees(lengthscales: tuple[float, ...]) -> str:
    return " x ".join(f"{value:.2f}" for value in lengthscales)


def _lengthscales(regressor: Any, train: Dataset) -> tuple[float, ...]:
    """In degrees: the regressor works with standardised inputs."""
    found = [value for name, value in regressor.hyperparameters_.items() if "lengthscale" in name]
    return tuple(value * spread for value, spread in zip(found, train.X.std(axis=0), strict=True))


def _maps(one: Trained, train: Dataset, airports: Dataset) -> Surface:
    longitude, latitude, grid = grid_over(airports.X, MAP_WIDTH, MAP_HEIGHT)
    near = _near(grid, airports.X)
    mean, std = (np.full(len(grid), np.nan) for _ in range(2))
    mean[near], std[near] = one.regressor.predict(pd.DataFrame(grid[near], columns=list(train.feature_names)), True)
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
        note=f"By {one.name}. Blank: more than {REACH:g} degrees from all {len(airports):,} airports.",
    )


def _near(grid: npt.NDArray[np.float64], airports: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which grid points have an airport within REACH; in parts, to bound the memory."""
    near = [
        (((part[:, None] - airports[None]) ** 2).sum(axis=2) < REACH**2).any(axis=1)
        for part in np.array_split(grid, max(1, len(grid) // 200))
    ]
    return np.concatenate(near)
