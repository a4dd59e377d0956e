"""Rows keep what was measured, and say at which code."""

from __future__ import annotations

import csv
import re
import subprocess
from pathlib import Path

import pytest
import record


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    return tmp_path


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_appended_with_their_commit(results, monkeypatch):
    monkeypatch.setenv(record.COMMIT, "abc1234")
    record.append("speed", [{"set": "pol", "seconds": 1.5}])
    before = (results / "speed.csv").read_text()
    rows = read(record.append("speed", [{"set": "bike", "seconds": 2}]))
    assert (results / "speed.csv").read_text().startswith(before)
    assert [(row["set"], row["seconds"], row["commit"]) for row in rows] == [
        ("pol", "1.5", "abc1234"),
        ("bike", "2", "abc1234"),
    ]


def test_a_new_column_leaves_older_rows_as_they_are(results):
    (results / "speed.csv").write_text('set,seconds,note\npol,1.50,"a, b"\n')
    old, new = read(record.append("speed", [{"set": "bike", "seconds": 2, "dtype": "float32"}]))
    assert (old["set"], old["seconds"], old["note"], old["dtype"], old["commit"]) == ("pol", "1.50", "a, b", "", "")
    assert (new["set"], new["seconds"], new["note"], new["dtype"]) == ("bike", "2", "", "float32")


def test_the_commit_is_that_of_the_code(monkeypatch):
    monkeypatch.delenv(record.COMMIT, raising=False)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("git does not answer here")
    assert re.fullmatch(done.stdout[:7] + r"\+?", record.commit())


def test_code_without_its_history_has_no_commit(monkeypatch):
    def no_git(*_, **__):
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.delenv(record.COMMIT, raising=False)
    monkeypatch.setattr(subprocess, "run", no_git)
    assert record.commit() == ""
