"""small_disk.py FOLDER: in a namespace of its own, mount a disk of 2 MiB there and fill it, then make it read-only.

A program, because mounting needs `unshare`. It ends with "ok" and counts, or with the traceback of what failed.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import scenes
from rtgp._cli import app
from rtgp.errors import StorageError
from rtgp.training import CheckpointError, CheckpointWarning

SIZE = 2 * 2**20
PAGE = 4096


class Disk:
    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], check=True)

    def leave(self, free: int) -> None:
        """Fill the disk but for so many bytes."""
        self._ballast.unlink(missing_ok=True)
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(PAGE))
            except OSError:
                file.truncate(file.tell() - free)

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)


def predict(model: Path, new: Path, output: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["predict", str(model), str(new), "-o", str(output)])
    return result.exit_code, result.output


def models(disk: Disk) -> tuple[int, int]:
    """With every number of free pages, from none to enough: the new model, or the old one untouched."""
    place, written, refused = disk.folder / "model", 0, 0
    scenes.regressor("rbf").save(place)
    need = sum(len(part) for part in scenes.content(place).values()) + 6 * PAGE
    for free in range(0, need, PAGE):
        disk.empty()
        scenes.regressor("rbf").save(place)
        before = scenes.content(place)
        disk.leave(free)
        try:
            scenes.regressor("matern12").save(place)
            assert scenes.kept(place, "matern12")
            written += 1
        except StorageError as error:
            words = str(error)
            assert "no space left on the disk" in words
            assert scenes.content(place) == before
            refused += 1
        try:
            scenes.regressor("rbf").save(disk.folder / "new")
        except StorageError:
            assert not (disk.folder / "new").exists()
        else:
            assert scenes.kept(disk.folder / "new", "rbf")
            subprocess.run(["rm", "-r", str(disk.folder / "new")], check=True)
    assert written
    assert refused
    return written, refused


def tables(disk: Disk, model: Path) -> None:
    new, output = disk.folder / "new.csv", disk.folder / "out.csv"
    rows = np.random.default_rng(0).uniform(size=(400, 2))
    new.write_text("x0,x1\n" + "\n".join(",".join(map(repr, row)) for row in rows.tolist()))
    assert predict(model, new, output)[0] == 0
    before = scenes.content(disk.folder)
    for free in (0, PAGE):
        disk.leave(free)
        code, said = predict(model, new, output)
        disk.empty()
        assert code == 1, said
        assert "out.csv could not be written" in said, said
        assert "Free some space" in said, said
        assert "Traceback" not in said
        assert scenes.content(disk.folder) == before
    assert predict(model, new, output)[0] == 0


def checkpoints(disk: Disk) -> None:
    wanted, state = scenes.train(None), disk.folder / "state"
    disk.leave(0)
    with pytest.raises(CheckpointError, match=r"step 0 could not be written.*Free some space"):
        scenes.train(state, lambda *_: pytest.fail("training had begun"))
    assert scenes.names(state) == []
    disk.empty()

    def fill(row, model) -> None:
        if row["step"] == 3:
            disk.leave(PAGE)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = scenes.train(state, fill)
    words = [str(one.message) for one in said if one.category is CheckpointWarning]
    assert words
    assert "step 4 could not be written" in words[0], words
    assert "goes on from step 3" in words[0]
    assert torch.equal(found, wanted), "a full disk changed the training"
    assert sorted(name for name in scenes.names(state) if name.endswith("json"))[-1] == "checkpoint-00000003.json"
    assert not [name for name in scenes.names(state) if name.endswith("part")]
    disk.empty()
    steps: list[int] = []
    assert torch.equal(scenes.train(state, lambda row, _: steps.append(row["step"])), wanted)
    assert steps[0] == 3


def read_only(disk: Disk, model: Path) -> None:
    new, output, state = disk.folder / "new.csv", disk.folder / "out.csv", disk.folder / "state"
    wanted, before = scenes.train(None), scenes.content(disk.folder)
    disk.read_only()
    with pytest.raises(StorageError, match=r"may not be written to \(read-only"):
        scenes.regressor("matern12").save(disk.folder / "model")
    with pytest.raises(StorageError, match="Change that, or name another place"):
        scenes.regressor("matern12").save(disk.folder / "other")
    with pytest.raises(CheckpointError, match="read-only"):
        scenes.train(disk.folder / "other")
    code, said = predict(model, new, output)
    assert code == 2, said  # found before any work
    assert "may not be written to" in said
    assert torch.equal(scenes.train(state), wanted)  # a finished training is read all the same
    assert scenes.content(disk.folder) == before


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for kernel in ("rbf", "matern12"):
        scenes.regressor(kernel)
    disk = Disk(folder)
    written, refused = models(disk)
    disk.empty()
    model = folder / "named"
    data = folder / "data.csv"
    data.write_text("x0,x1,y\n" + "\n".join(f"{i % 7},{i % 5},{i % 3}" for i in range(30)))
    args = ["fit", str(data), "-t", "y", "-o", str(model), "--steps", "1"]
    assert CliRunner().invoke(app, args).exit_code == 0
    tables(disk, model)
    checkpoints(disk)
    read_only(disk, model)
    sys.stdout.write(f"ok: {written} models written and {refused} refused\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
