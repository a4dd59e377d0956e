"""A full disk and a read-only folder: what was there stays, nothing half-written is left, and a sentence says why."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from faults import scenes
from rtgp._cli import app
from rtgp._storage import write_text
from rtgp.errors import StorageError
from rtgp.training import CheckpointError, CheckpointWarning

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs limits and namespaces of Linux")
SMALL_DISK = Path(__file__).with_name("small_disk.py")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Every write beyond so many bytes of a file fails, as it does on a full disk, but to the byte."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class TestCutAtAnyByte:
    def test_a_model(self, tmp_path: Path) -> None:
        place = tmp_path / "model"
        scenes.regressor("rbf").save(place)
        before = scenes.content(place)
        largest = max(map(len, before.values()))
        for size in (largest * part // 31 for part in range(31)):
            for name, folder in (("model", place), ("new", tmp_path / "new" / "model")):
                words = rf"The model could not be written.*{name}.*Name another"
                with pytest.raises(StorageError, match=words), largest_file(size):
                    scenes.regressor("matern12").save(folder)
            assert scenes.content(place) == before
            assert scenes.names(tmp_path) == ["model", "model/model.json", "model/model.safetensors"]
        with largest_file(2 * largest):
            scenes.regressor("matern12").save(place)
        assert scenes.kept(place, "matern12")

    def test_predictions(self, tmp_path: Path) -> None:
        path = tmp_path / "out.csv"
        write_text(path, "old\n" * 9)
        for size in range(0, 4000, 333):
            with pytest.raises(StorageError, match=r"out\.csv could not be written to"), largest_file(size):
                write_text(path, "new\n" * 1000)
            assert scenes.content(tmp_path) == {"out.csv": b"old\n" * 9}

    def test_a_checkpoint(self, tmp_path: Path) -> None:
        """Training goes on to the same parameters, and an interrupted one from the last whole checkpoint."""
        wanted = scenes.train(None)
        with largest_file(1000), pytest.raises(CheckpointError, match="step 0 could not be written"):
            scenes.train(tmp_path / "none", lambda *_: pytest.fail("training had begun"))
        assert scenes.names(tmp_path) == []
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        state = tmp_path / "state"

        def full(row, model) -> None:
            if row["step"] == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))

        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", CheckpointWarning)
                found = scenes.train(state, full)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        words = [str(one.message) for one in said if one.category is CheckpointWarning]
        assert len(words) == scenes.STEPS - 4 + 1  # steps 5 to the last, and the end
        assert all("goes on from step 4" in sentence for sentence in words)
        assert torch.equal(found, wanted)
        steps: list[int] = []
        assert torch.equal(scenes.train(state, lambda row, _: steps.append(row["step"])), wanted)
        assert steps == list(range(4, scenes.STEPS))


def test_a_standard_output_that_is_full(tmp_path: Path) -> None:
    """`rtgp predict ... > file` on a full disk ends with an error, not with a table that is cut short."""
    (tmp_path / "d.csv").write_text("a,y\n" + "\n".join(f"{i},{i % 3}" for i in range(20)))
    args = ["fit", str(tmp_path / "d.csv"), "-t", "y", "-o", str(tmp_path / "m"), "--steps", "1"]
    assert CliRunner().invoke(app, args).exit_code == 0
    command = [sys.executable, "-m", "rtgp", "predict", str(tmp_path / "m"), str(tmp_path / "d.csv")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    return (
        subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True).returncode == 0
    )


NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def test_a_small_disk_that_is_filled_and_then_read_only(tmp_path: Path) -> None:
    """A real file system, in a namespace of its own: every number of free pages; then no right to write."""
    if not _can_mount(tmp_path):
        pytest.skip("no right to mount in a namespace")
    done = subprocess.run([*NAMESPACE, sys.executable, str(SMALL_DISK), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok: "), done.stdout
