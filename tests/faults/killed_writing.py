"""killed_writing.py FOLDER RANDOM: writers that die at every file operation in turn, then at RANDOM random moments.

A program of its own that forks: libraries are loaded once, and every child dies like a process that was killed.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import scenes
from rtgp._cli.predict import predict
from rtgp._storage import write_text
from rtgp.training._checkpoint import CheckpointFolder

OPERATIONS = [(os, name) for name in ("replace", "fsync", "unlink", "mkdir", "open")] + [(io, "open")]
TEXTS = ("first\n" * 3000, "second\n" * 3000)


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def die_at(count: int) -> None:
    """From here on the process dies before its `count`-th operation on files, with no chance to clean up."""
    left = [count]

    def deadly(function: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return function(*args, **kwargs)

        return counted

    for module, name in OPERATIONS:
        setattr(module, name, deadly(getattr(module, name)))


def state(number: int) -> dict[str, object]:
    return {"number": number, "tensor": torch.full((1000,), float(number))}


class Model:
    """A model saved over another."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "model"
        scenes.regressor("rbf").save(self.place)

    def write(self) -> None:
        for kernel in ("matern12", "rbf"):
            scenes.regressor(kernel).save(self.place)

    def whole(self) -> bool:
        return scenes.kept(self.place, "rbf", "matern12")


class NewModel:
    """A model where there was none: afterwards it is there, or none is."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "new" / "model"

    def write(self) -> None:
        scenes.regressor("rbf").save(self.place)

    def whole(self) -> bool:
        good = not (self.place / "model.json").exists() or scenes.kept(self.place, "rbf")
        scenes.regressor("rbf").save(self.place)  # what a killed one left is no obstacle
        left = scenes.names(self.place)
        for path in self.place.iterdir():
            path.unlink()
        return good and "model.json" in left and not [name for name in left if name.endswith("part")]


class Checkpoint:
    """A checkpoint after another, and the same step once more."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "state"
        self._save(1)

    def _save(self, *numbers: int) -> None:
        with CheckpointFolder(self.place, {"data": "x"}) as folder:
            folder.load()
            for number in numbers:
                folder.save(number, state(number))

    def write(self) -> None:
        self._save(2, 3, 3)

    def whole(self) -> bool:
        with CheckpointFolder(self.place, {"data": "x"}) as folder:
            found = folder.load()
        assert found is not None
        good = torch.equal(found["tensor"], torch.full((1000,), float(found["number"])))
        shutil.rmtree(self.place)
        self._save(1)
        return good


class Predictions:
    """A table of predictions over another."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "out.csv"
        write_text(self.place, TEXTS[0])

    def write(self) -> None:
        for text in reversed(TEXTS):
            write_text(self.place, text)

    def whole(self) -> bool:
        return self.place.read_text() in TEXTS


class Command:
    """`rtgp predict` itself."""

    def __init__(self, folder: Path) -> None:
        self.model, self.data, self.place = folder / "named", folder / "new.csv", folder / "predicted.csv"
        import pandas as pd

        from rtgp._estimator.regressor import GPRegressor

        rows = np.random.default_rng(0).uniform(size=(500, 2))
        frame = pd.DataFrame(rows, columns=["a", "b"])
        GPRegressor(steps=1, random_state=0).fit(frame[:30], rows[:30, 0]).save(self.model)
        frame.to_csv(self.data, index=False)
        self.write()
        self.wanted = self.place.read_bytes()

    def write(self) -> None:
        predict(self.model, str(self.data), self.place)

    def whole(self) -> bool:
        return self.place.read_bytes() == self.wanted


def every_operation(thing: Model | NewModel | Checkpoint | Predictions | Command) -> int:
    """Die before the first operation, the second, ... until the writer lives to its end; how many died."""
    for count in range(1000):

        def work(count: int = count) -> None:
            die_at(count)
            thing.write()

        status = os.waitpid(fork(work), 0)[1]
        assert thing.whole(), f"{type(thing).__name__} was lost at operation {count}"
        if os.waitstatus_to_exitcode(status) == 0:
            return count
        assert os.waitstatus_to_exitcode(status) == 9, f"the writer failed by itself at operation {count}"
    raise AssertionError("a writer without end")


def random_moments(thing: Model | NewModel | Checkpoint | Predictions | Command, count: int) -> int:
    chance, killed = random.Random(0), 0

    def work() -> None:
        while True:
            thing.write()

    for _ in range(count):
        child = fork(work)
        time.sleep(chance.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert thing.whole(), f"{type(thing).__name__} was lost"
    return killed


def main(folder: Path, moments: int) -> None:
    torch.set_num_threads(1)
    for kernel in ("rbf", "matern12"):
        scenes.predictions(kernel)
    died = killed = 0
    for kind in (Model, NewModel, Checkpoint, Predictions, Command):
        thing = kind(folder)
        if kind is not Command:
            died += every_operation(thing)
        killed += random_moments(thing, moments)
    sys.stdout.write(f"ok: {died} deaths at every operation, {killed} at random moments\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
