"""Methods tell of themselves: nobody else asks which one it is. By the syntax tree of every other file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rtgp
from rtgp._methods import METHODS

SOURCE = Path(rtgp.__file__).parent
REPRODUCTION = Path(__file__).parents[1] / "reproduction"
OWN = {"_methods/facts.py", "_methods/likelihoods.py", "_methods/names.py", "_methods/vecchia.py"}
OWN |= {"_baselines/__init__.py", "_baselines/poe/settings.py", "_baselines/sggp.py", "_baselines/svgp/settings.py"}
CLASSES = {kind.__name__ for kind in METHODS.values()} | {"Method", "AnyMethod"}


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _classes(node: ast.expr | None) -> set[str]:
    """The method classes that an expression is made of: by name, in tuples, in unions, as keys; not what they make."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return set().union(*map(_classes, node.elts))
    if isinstance(node, ast.Dict):
        return set().union(*map(_classes, node.keys))
    if isinstance(node, ast.BinOp):
        return _classes(node.left) | _classes(node.right)
    return {_last_name(node)} & CLASSES if isinstance(node, (ast.Name, ast.Attribute)) else set()


def aliases(tree: ast.AST) -> set[str]:
    """Names given to groups of method classes, such as KINDS = (CG, RRCG)."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _classes(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= set(map(_last_name, targets))
    return found


def questions(tree: ast.AST, known: frozenset[str] = frozenset()) -> Iterator[str]:
    """The lines that ask which method it is. known: names of groups of method classes, from all files."""
    groups = known | aliases(tree)
    for node in ast.walk(tree):
        asked = False
        if isinstance(node, ast.Call) and len(node.args) >= 2:
            call, first, second = _last_name(node.func), node.args[0], node.args[1]
            if call in ("isinstance", "issubclass"):
                asked = bool(_classes(second)) or _last_name(second) in groups
            elif call in ("getattr", "hasattr"):
                asked = _last_name(first).strip("_").endswith("method") and isinstance(second, ast.Constant)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            of_a_type = any(isinstance(side, ast.Call) and _last_name(side.func) == "type" for side in sides)
            named = any(isinstance(side, ast.Attribute) and side.attr == "__name__" for side in sides)
            constants = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)}
            asked = (of_a_type and any(_classes(side) for side in sides)) or (named and bool(constants & CLASSES))
        elif isinstance(node, ast.MatchClass):
            asked = bool(_classes(node.cls))
        elif isinstance(node, ast.Dict):
            asked = bool(_classes(node)) or bool({k.value for k in node.keys if isinstance(k, ast.Constant)} & CLASSES)
        if asked:
            yield ast.unparse(node)


def test_nobody_else_asks() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    files |= {path.relative_to(REPRODUCTION.parent).as_posix(): path for path in REPRODUCTION.rglob("*.py")}
    trees = {name: ast.parse(path.read_text()) for name, path in files.items()}
    known = frozenset().union(*(aliases(tree) for tree in trees.values()))
    asking = {name: list(questions(tree, known)) for name, tree in trees.items() if name not in OWN}
    assert not {name: lines for name, lines in asking.items() if lines}, (
        "add a fact to rtgp._methods.facts.AnyMethod instead"
    )


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(method, CG)",
        "isinstance(problem.method, rtgp.Vecchia)",
        "isinstance(x, (SVGP, baselines.POE))",
        "isinstance(method, CG | RRCG)",
        "issubclass(kind, Cholesky)",
        "BIASED = {CG: 'plain CG'}",
        "REMEDIES = {'RRCG': 'take less'}",
        "type(method) is RFF",
        "type(method) in (RFF, SSRFF)",
        "type(method).__name__ == 'Cholesky'",
        "hasattr(method, 'probes')",
        "getattr(self.method_, 'operator', 'auto')",
        "KINDS = (CG, RRCG)\nisinstance(method, KINDS)",
        "match method:\n    case CG():\n        pass",
    ],
)
def test_what_the_test_would_find(line: str) -> None:
    assert list(questions(ast.parse(line)))


def test_groups_of_another_file_are_known() -> None:
    there = aliases(ast.parse("OTHERS: tuple[type, ...] = (SGGP, Vecchia)"))
    assert list(questions(ast.parse("isinstance(method, OTHERS)"), frozenset(there)))


@pytest.mark.parametrize(
    "line",
    [
        "method = Cholesky()",
        "isinstance(settings, PivotedCholesky)",
        "isinstance(method, str)",
        "f'by {type(method).__name__}'",
        "getattr(regressor, name)",
        "methods: list[Method] = [exact, method]",
    ],
)
def test_what_is_no_question(line: str) -> None:
    assert not list(questions(ast.parse(line)))
