"""Benchmarks measure the library as it is: what they vary is an argument. By their syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PATCHING = {"mock", "monkeypatch", "MonkeyPatch", "patch", "setattr", "delattr"}


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def patches(tree: ast.Module) -> set[str]:
    """Tools for patching that are named, and attributes or entries of what was imported that are assigned to."""
    imported, found = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                imported.add((alias.asname or alias.name).split(".")[0])
                found |= PATCHING & {*alias.name.split("."), *(getattr(node, "module", None) or "").split(".")}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            found |= PATCHING & {node.id if isinstance(node, ast.Name) else node.attr}
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            found |= {ast.unparse(node)} if _root(node) in imported else set()
    return found


@pytest.mark.parametrize("file", sorted(BENCHMARKS.glob("*.py")), ids=lambda file: file.stem)
def test_nothing_is_patched(file: Path) -> None:
    assert not patches(ast.parse(file.read_text()))


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from unittest.mock import patch", {"mock", "patch"}),
        ("import a.b as whole\nwhole.METHODS['this'] = 1", {"whole.METHODS['this']"}),
        ("from rtgp.training import newton\nnewton._SHARE, x = 0.3, 1", {"newton._SHARE"}),
        ("import newton\nnewton.SHARE += 1", {"newton.SHARE"}),
        ("import newton\nsetattr(newton, 'SHARE', 1)", {"setattr"}),
        ("from rtgp import RRCG\nmethod = RRCG(probes=3)\nmodel.noise = 1e-3\nrows['a'] = 2", set()),
    ],
)
def test_what_the_test_would_find(code: str, names: set[str]) -> None:
    assert patches(ast.parse(code)) == names
