"""The version stands in one place, and what names a version names that one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import rtgp
from rtgp._report import versions
from rtgp.distributed import environment
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def test_it_is_stated_once() -> None:
    stated = re.compile(r"^(__version__|version) *= *[\"']", re.MULTILINE)
    files = [ROOT / "pyproject.toml", *(ROOT / "src").rglob("*.py")]
    found = [path.relative_to(ROOT).as_posix() for path in files if stated.search(path.read_text(encoding="utf-8"))]
    assert found == ["src/rtgp/_provenance.py"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rtgp._provenance.__version__"}


def test_what_is_built_has_it(tmp_path: Path) -> None:
    """By setuptools itself, from the two files that it needs: no installed rtgp can answer in its place."""
    (tmp_path / "src" / "rtgp").mkdir(parents=True)
    (tmp_path / "README.md").touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("__init__.py", "_provenance.py"):
        shutil.copy(ROOT / "src" / "rtgp" / name, tmp_path / "src" / "rtgp")
    code = "from setuptools import setup; setup()"
    command = [sys.executable, "-I", "-c", code, "-q", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.splitlines()[-1] == rtgp.__version__


def test_what_is_reported_is_of_the_code_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of an installed rtgp, which may be older than a source tree that runs in its place."""
    assert versions()["rtgp"] == rtgp.__version__
    assert environment(torch.device("cpu"))["version of rtgp"] == rtgp.__version__


def test_the_changelog_has_its_section_on_top() -> None:
    sections = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [(name, date) for name, date in sections if name != "Unreleased"]
    assert released[0][0] == rtgp.__version__
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for _, date in released)
