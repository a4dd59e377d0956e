"""What is fuzzed: a hostile input from a seed, given to the library. Only its documented errors may come back."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fuzz import saved, tables
from rtgp._estimator.regressor import GPRegressor
from rtgp.datasets import read_table
from rtgp.errors import OutOfMemoryError, RTGPError

READ, REFUSED = "read", "refused"
_MOST_FEATURES = 1000  # of a model that is asked to predict


def try_one(target: str, case: int, folder: Path) -> str:
    """READ or REFUSED; anything else is raised."""
    chance = random.Random(f"{target}:{case}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[target](chance, folder)
    except OutOfMemoryError:  # of inputs of some kilobytes: a size was believed
        raise
    except RTGPError:
        return REFUSED
    return READ


def _table(ending: str, make: Callable[[random.Random], bytes]) -> Callable[[random.Random, Path], None]:
    def run(chance: random.Random, folder: Path) -> None:
        path = folder / f"table{ending}"
        path.write_bytes(make(chance))
        read_table(path, chance.choice((None, None, True, False)))

    return run


def _model(chance: random.Random, folder: Path) -> None:
    _fresh(folder / "model", saved.model(chance))
    loaded = GPRegressor.load(folder / "model")
    numbers = [*loaded.model_.parameters(), *(t for e in getattr(loaded.model_, "experts", []) for t in e.parameters())]
    assert all(bool(torch.isfinite(number).all()) for number in numbers), "NaN in a parameter of a loaded model"
    if loaded.n_features_in_ <= _MOST_FEATURES:
        loaded.predict(np.zeros((3, loaded.n_features_in_)), return_std=True)


def _checkpoint(chance: random.Random, folder: Path) -> None:
    run, files = saved.checkpoint(chance)
    _fresh(folder / "state", files)
    trained = saved.resume(folder / "state", run)
    assert all(bool(torch.isfinite(number).all()) for number in trained.parameters()), "NaN in a parameter"


def _fresh(folder: Path, files: saved.Files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _mixed(chance: random.Random, folder: Path) -> None:
    """One of the others, the quick ones more often."""
    TARGETS[chance.choice(("csv",) * 4 + ("csv.gz",) * 2 + ("npz",) * 4 + ("parquet",) * 4 + ("model", "checkpoint"))](
        chance, folder
    )


TARGETS: dict[str, Callable[[random.Random, Path], None]] = {
    "csv": _table(".csv", tables.csv),
    "csv.gz": _table(".csv.gz", tables.csv_gz),
    "npz": _table(".npz", tables.npz),
    "parquet": _table(".parquet", tables.parquet),
    "model": _model,
    "checkpoint": _checkpoint,
    "mixed": _mixed,
}
