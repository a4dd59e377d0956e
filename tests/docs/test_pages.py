"""Every Python block and every `rtgp` command of README and docs is run, page by page, in the order of the page."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from docs.outputs import TOLERANCE, difference
from docs.pages import Block, blocks, name_of, pages
from rtgp._cli import app

# Blocks that are not run: page -> reasons. A new one belongs here, and needs a reason that a reader would accept.
NOT_RUN: dict[str, list[str]] = {
    "README.md": ["the tests themselves, and minutes of training"],
    "docs/distributed.md": [
        "four processes; tests/distributed/test_torchrun.py starts two",
        "tests/benchmarks/test_cost.py runs it",
    ],
}
PAGES = [page for page in pages() if any(one.runs for one in blocks(page.read_text(encoding="utf-8")))]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with the reader's own table, as the pages call it. torch's generator and the environment are kept."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(120, 2))
    frame = pd.DataFrame({"area": X[:, 0], "age": X[:, 1]})
    price = np.sin(4 * X[:, 0]) - X[:, 1] + 0.1 * rng.normal(size=len(X))
    for name in ("data.csv", "houses.csv"):
        frame.assign(price=price).to_csv(tmp_path / name, index=False)
    frame.head(5).to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.chdir(tmp_path)
    environment = dict(os.environ)
    with torch.random.fork_rng():
        yield tmp_path
    os.environ.clear()
    os.environ.update(environment)


def run_python(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.before, f"{page} (set-up)", "exec"), namespace)
        # Blank lines first, so that a traceback names the line of the page.
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)
    return printed.getvalue()


def run_commands(block: Block, namespace: dict[str, Any]) -> str:
    exec(compile(block.before, "set-up", "exec"), namespace)
    printed = ""
    for command in block.commands:
        result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"
        printed += result.stdout
    return printed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.runs:
            run = run_python(block, page, namespace) if block.language == "python" else run_commands(block, namespace)
            printed = run
        elif block.language == "text" and block.follows and printed is not None:
            found = difference(block.text, printed, TOLERANCE if block.tolerance is None else block.tolerance)
            assert not found, f"{name_of(page)}, line {block.line}: {found}"
            printed = None
        else:
            printed = None


def test_what_is_not_run() -> None:
    found = {
        name_of(page): reasons
        for page in pages()
        if (reasons := [one.not_run for one in blocks(page.read_text(encoding="utf-8")) if one.not_run])
    }
    assert found == NOT_RUN


def test_a_shell_block_holds_commands_that_are_run() -> None:
    """Anything but `rtgp ...` would be passed over in silence."""
    for page in pages():
        for one in blocks(page.read_text(encoding="utf-8")):
            if one.language == "shell" and not one.not_run:
                lines = [line for line in one.text.replace("\\\n", " ").splitlines() if line.strip()]
                assert lines == one.commands, f"{name_of(page)}, line {one.line}"


def test_all_blocks_are_of_a_known_kind() -> None:
    """A misspelt language would leave its block unrun."""
    for page in pages():
        for one in blocks(page.read_text(encoding="utf-8")):
            known = one.language in ("", "python", "shell", "text", "toml", "make") or one.language.startswith("{")
            assert known, f"{name_of(page)}, line {one.line}: {one.language!r}"
