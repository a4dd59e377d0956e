"""Writers killed at every file operation and at random moments: the old file or the new one, never neither."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from faults import scenes
from rtgp._cli.files import read_fit_record, write_fit_record

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
KILLER = Path(__file__).with_name("killed_writing.py")


def test_the_record_of_another_model_is_not_told(tmp_path: Path) -> None:
    """A fit that is killed between its model and `fit.json` leaves the record of the model before."""
    scenes.regressor("rbf").save(tmp_path)
    write_fit_record(tmp_path, {"target": "price"})
    assert read_fit_record(tmp_path)["target"] == "price"
    scenes.regressor("matern12").save(tmp_path)
    assert read_fit_record(tmp_path) == {}


def kill(folder: Path, moments: int) -> None:
    done = subprocess.run([sys.executable, str(KILLER), str(folder), str(moments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    died, killed = map(int, re.findall(r"\d+", done.stdout))
    assert died > 60
    assert killed == 5 * moments


def test_at_every_operation_and_a_few_moments(tmp_path: Path) -> None:
    kill(tmp_path, 3)


@pytest.mark.slow
def test_at_many_moments(tmp_path: Path) -> None:
    kill(tmp_path, 200)
