"""Only `_precision.py` warns of a precision or takes a kernel to another: by the syntax tree of every other file."""

from __future__ import annotations

import ast
from pathlib import Path

import rtgp

SOURCE = Path(rtgp.__file__).parent
REPRODUCTION = Path(__file__).parents[1] / "reproduction"
DECIDES = "_precision.py"
NAMES_THE_WARNING = {DECIDES, "errors.py"}
TAKES_A_KERNEL_OVER = {DECIDES}


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_the_warning(tree: ast.AST) -> bool:
    """To give it, to catch it, or to silence it: by name, by import, or as the word that a filter takes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and _last_name(node) == "PrecisionWarning":
            return True
        if isinstance(node, ast.ImportFrom) and any(one.name == "PrecisionWarning" for one in node.names):
            return True
        if isinstance(node, ast.ClassDef) and node.name == "PrecisionWarning":
            return True
        if isinstance(node, ast.Call):
            words = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if any(word.split(".")[-1] == "PrecisionWarning" for word in words):
                return True
    return False


class _Calls(ast.NodeVisitor):
    """Of `widened`, but for those in a function of that name, which is where a kernel of kernels asks its parts."""

    def __init__(self) -> None:
        self.found = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "widened":
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.found |= node.attr == "widened"
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _last_name(node.func) in ("getattr", "methodcaller"):
            self.found |= any(isinstance(one, ast.Constant) and one.value == "widened" for one in node.args)
        self.generic_visit(node)


def takes_a_kernel_over(tree: ast.AST) -> bool:
    calls = _Calls()
    calls.visit(tree)
    return calls.found


def _trees() -> dict[str, ast.AST]:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    files |= {path.relative_to(REPRODUCTION.parent).as_posix(): path for path in REPRODUCTION.rglob("*.py")}
    return {name: ast.parse(path.read_text()) for name, path in files.items()}


def test_one_place_warns() -> None:
    assert {name for name, tree in _trees().items() if names_the_warning(tree)} == NAMES_THE_WARNING


def test_one_place_takes_a_kernel_to_float64() -> None:
    assert {name for name, tree in _trees().items() if takes_a_kernel_over(tree)} == TAKES_A_KERNEL_OVER


def test_what_the_tests_would_find() -> None:
    for code in (
        "warnings.warn('x', PrecisionWarning)",
        "from rtgp.errors import PrecisionWarning",
        "try: fit()\nexcept errors.PrecisionWarning: pass",
        "warnings.filterwarnings('ignore', 'rtgp.errors.PrecisionWarning')",
    ):
        assert names_the_warning(ast.parse(code)), code
    assert not names_the_warning(ast.parse("'''A PrecisionWarning says so.'''"))
    assert takes_a_kernel_over(ast.parse("wide = form.widened() or form"))
    assert takes_a_kernel_over(ast.parse("def f(form):\n    return getattr(form, 'widened')()"))
    assert not takes_a_kernel_over(ast.parse("def widened(self):\n    return self.form.widened()"))
