"""A job that has done its work exits with 0, always: no thread of its group outlives the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rtgp
from waiting import PATIENCE

PROGRAM = Path(__file__).with_name("ending.py")
WAYS = ["stop", "never", "exit", "fork", "kept error"]

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's list of threads")


@pytest.fixture
def busy() -> Iterator[None]:
    """As many processes that do nothing but count as there are processors."""
    count = len(os.sched_getaffinity(0))
    program = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # no longer than this process
    loads = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range(count)]
    yield
    for load in loads:
        load.kill()
        load.wait()


def leave(way: str, jobs: int, folder: Path) -> list[list[tuple[int, str]]]:
    paths = [str(Path(rtgp.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(PROGRAM), way, str(jobs), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr
    return [[(code, words) for code, words in job] for job in json.loads(done.stdout)]


def test_no_thread_of_the_group_is_left(tmp_path: Path) -> None:
    found = leave(",".join(WAYS), len(WAYS), tmp_path)
    assert dict(zip(WAYS, found, strict=True)) == {way: [(0, ""), (0, "")] for way in WAYS}


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
def test_a_job_that_succeeded_exits_with_0_on_a_busy_machine(tmp_path: Path) -> None:
    for job in leave("stop,never,exit", 60, tmp_path):
        assert job == [(0, ""), (0, "")]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        pytest.param(
            "error",
            ["ValueError: an error of every rank", "ValueError: an error of every rank"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "error of one",
            ["Rank 1 has left: ValueError: an error of rank 1", "ValueError: an error of rank 1"],
            marks=pytest.mark.slow,  # what the others are told is in `test_experts.py` too
        ),
        pytest.param(
            "error of the first",
            ["ValueError: an error of rank 0", "Rank 0 has left: ValueError: an error of rank 0"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_error_is_an_error_and_no_abort(way: str, said: list[str], tmp_path: Path) -> None:
    """The rank that serves the store stays until the others have read there why it leaves."""
    for job in leave(way, 2, tmp_path):
        for (code, words), expected in zip(job, said, strict=True):
            assert code == 1
            assert expected in words
            assert "terminate called" not in words
            assert "threads that are left" not in words
