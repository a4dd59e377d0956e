"""What a contributor relies on says what is there: CONTRIBUTING, CITATION, the hooks and the workflow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import rtgp

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_QUOTED = re.compile(r"`([^`\n]+)`")


def paths(text: str) -> list[str]:
    """What stands between backticks and looks like a path of this repository."""
    words = [word for quoted in _QUOTED.findall(text) for word in quoted.split()]
    return [word for word in words if "/" in word or word.endswith((".md", ".toml", ".cff"))]


def test_every_path_in_contributing_is_there() -> None:
    named = paths(CONTRIBUTING)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []
    links = re.findall(r"\]\(([^)#]+)", CONTRIBUTING)
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_every_name_in_contributing_is_there() -> None:
    """A name and the file it stands in, as `NAME` in `FILE` or `NAME` (`FILE`)."""
    pairs = re.findall(r"`(\w+)`,? (?:in|of|\()\s*`?((?:src|tests)/[\w/]+\.py)", CONTRIBUTING)
    pairs += [("KINDS", "tests/reference.py"), ("CASES", "tests/conformance/test_preconditioner.py")]
    assert len(pairs) >= 6
    for name, file in pairs:
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8")), f"{name} is not in {file}"


def test_every_target_and_marker_in_contributing_is_there() -> None:
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", CONTRIBUTING, re.MULTILINE))
    assert {"setup", "lint", "test", "test-all", "docs"} <= targets
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    markers = [line.partition(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]]
    assert re.findall(r"^   - `(\w+)`:", CONTRIBUTING, re.MULTILINE) == markers


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert cited["version"] == rtgp.__version__
    assert f"## [{cited['version']}] - {cited['date-released']}" in changelog
    assert cited["license"] == PROJECT["project"]["license"]["text"]
    assert [author["name"] for author in cited["authors"]] == [one["name"] for one in PROJECT["project"]["authors"]]


@pytest.mark.parametrize("tool", ["ruff check", "ruff format --check", "mypy"])
def test_a_hook_runs_what_lint_runs(tool: str) -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    assert any(hook["entry"].startswith(f".venv/bin/{tool}") for hook in repository["hooks"])
    assert f"$(BIN)/{tool}" in MAKEFILE


def test_the_workflow_runs_make_test_on_every_supported_python() -> None:
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    job = yaml.safe_load(text)["jobs"]["test"]
    versions = job["strategy"]["matrix"]["python"]
    least = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert versions[0] == least
    stated = [one.rpartition(" ")[2] for one in PROJECT["project"]["classifiers"] if ":: Python :: 3." in one]
    assert versions == stated
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs[-1] == "make test PYTHON=python${{ matrix.python }}"
    assert "PYTHON ?=" in MAKEFILE
