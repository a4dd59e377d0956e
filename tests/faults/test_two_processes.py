"""Two processes at one folder: one trains from a checkpoint, the other is told; models are saved and read whole."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from faults import scenes
from rtgp._persistence import folder as model_folder
from rtgp._storage import FolderLock
from rtgp.errors import InputError
from rtgp.training import CheckpointError
from rtgp.training._checkpoint import CheckpointFolder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs locks of POSIX")
HERE = Path(__file__).parent
HOLDER = """
import sys, time; sys.path.insert(0, sys.argv[2])
from pathlib import Path
from faults import scenes
def hold(row, model):
    if row["step"] == 3:
        print("held", flush=True)
        time.sleep(600)
scenes.train(Path(sys.argv[1]), hold)
"""
SAVER = """
import sys; sys.path.insert(0, sys.argv[2])
from pathlib import Path
from faults import scenes
kernel, times = sys.argv[3], int(sys.argv[4])
scenes.predictions(kernel)
for _ in range(times):
    scenes.regressor(kernel).save(Path(sys.argv[1]))
"""


def start(program: str, *args: object, **settings: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, args)], text=True, **settings)


def test_the_second_is_told_and_goes_on_when_the_first_has_died(tmp_path: Path) -> None:
    holder = start(HOLDER, tmp_path, HERE.parent, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = scenes.content(tmp_path)
        began = time.monotonic()
        with pytest.raises(CheckpointError, match=r"in use: another process trains from it\. Wait"):
            scenes.train(tmp_path, lambda *_: pytest.fail("training had begun"))
        assert time.monotonic() - began < 30.0
        assert scenes.content(tmp_path) == before
    finally:
        holder.kill()
        holder.communicate()
    steps: list[int] = []
    found = scenes.train(tmp_path, lambda row, _: steps.append(row["step"]))
    assert steps[0] == 3
    assert torch.equal(found, scenes.train(None))


def test_the_lock_ends_with_the_training(tmp_path: Path) -> None:
    def fail(row, model) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:  # which keeps the frames of `fit` alive
        scenes.train(tmp_path, fail)
    assert caught.value is not None
    scenes.train(tmp_path)
    with CheckpointFolder(tmp_path, {}) as first:
        with pytest.raises(CheckpointError, match="another problem"):
            first.load()
        with CheckpointFolder(tmp_path, {}) as second, pytest.raises(CheckpointError, match="in use"):
            second.load()


def test_a_model_that_another_process_is_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes.regressor("rbf").save(tmp_path)
    monkeypatch.setattr(model_folder, "_PATIENCE", 0.1)
    lock = FolderLock(tmp_path)
    assert lock.acquire(0.0)
    with pytest.raises(InputError, match="Another process is saving"):
        scenes.regressor("matern12").save(tmp_path)
    assert scenes.kept(tmp_path, "rbf")
    lock.release()
    scenes.regressor("matern12").save(tmp_path)


def test_a_model_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description is of the old one, whose tensors are gone: it is read again."""
    scenes.regressor("rbf").save(tmp_path)
    parse, done = model_folder._parse_description, []

    def replaced(folder: Path, text: bytes):
        if not done:
            done.append(scenes.regressor("matern12").save(tmp_path))
        return parse(folder, text)

    monkeypatch.setattr(model_folder, "_parse_description", replaced)
    assert scenes.kept(tmp_path, "matern12")
    assert done


@pytest.mark.slow
def test_models_saved_by_two_and_read_by_a_third(tmp_path: Path) -> None:
    place = tmp_path / "model"
    scenes.regressor("rbf").save(place)
    savers = [start(SAVER, place, HERE.parent, kernel, 40) for kernel in ("rbf", "matern12")]
    read = 0
    while any(saver.poll() is None for saver in savers):
        assert scenes.kept(place, "rbf", "matern12")
        read += 1
    assert [saver.returncode for saver in savers] == [0, 0]
    assert read > 10
    assert scenes.kept(place, "rbf", "matern12")
    assert len(scenes.names(place)) == 2
