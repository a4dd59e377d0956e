"""Small faults in Python source, one at a time: what a test suite should notice.

A fault changes one node of the syntax tree. Left alone: annotations, decorators, `__all__`, `zip(strict=True)`, which
only guard against errors of the program itself, and what stands inside messages (f-strings and strings).
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """One fault. `scope`, `kind`, `before`, `after` and the number of equal ones before it name it; the line does not,
    so that a name outlives changes elsewhere in the file."""

    scope: str
    kind: str
    before: str
    after: str
    number: int
    line: int
    make: Callable[[], ast.Module] = field(repr=False, compare=False)


def mutants(source: str) -> list[Mutant]:
    """Every fault there is for a module, in order of place."""
    tree = ast.parse(source)
    found = []
    seen: Counter[tuple[str, ...]] = Counter()
    for scope, node in _open(tree, ""):
        for kind, changed in _changes(node):
            name = (scope, kind, _words(node), _words(changed))
            found.append(Mutant(*name, seen[name], getattr(node, "lineno", 0), partial(_replaced, tree, node, changed)))
            seen[name] += 1
    return found


def _open(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """The node and everything below it that may be changed, each with the class and function it stands in."""
    if isinstance(node, ast.JoinedStr) or _closed(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        scope = f"{scope}.{node.name}".lstrip(".")
    yield scope, node
    skipped = {"annotation", "returns", "decorator_list", "bases", "type_params"}
    for name, value in ast.iter_fields(node):
        if name in skipped or (isinstance(node, ast.keyword) and node.arg == "strict"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _open(child, scope)


def _closed(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return "__all__" in names or any(name[:1].isupper() and _is_type(node.value) for name in names)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Assert)


def _is_type(value: ast.expr) -> bool:
    """An alias such as `Truncation = A | B`."""
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in _COMPARISONS[type(operator)]:
                changed = copy.deepcopy(node)
                changed.ops[place] = other()
                yield "comparison", changed
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC:
        changed = copy.deepcopy(node)
        changed.op = _ARITHMETIC[type(node.op)]()
        yield "arithmetic", changed
    elif isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "boolean", changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield "boolean" if isinstance(node.op, ast.Not) else "sign", node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)) and not _negated_elsewhere(node.test):
        changed = copy.deepcopy(node)
        changed.test = ast.copy_location(ast.UnaryOp(ast.Not(), changed.test), node.test)
        yield "condition", changed
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return", ast.copy_location(ast.Return(ast.Constant(None)), node)
    elif isinstance(node, (ast.Raise, ast.Break, ast.Continue)):
        yield "statement", ast.copy_location(ast.Pass(), node)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.copy_location(ast.Constant(not value), node)
    elif isinstance(value, int):
        yield "constant", ast.copy_location(ast.Constant(value + 1), node)
    elif isinstance(value, float):
        yield "constant", ast.copy_location(ast.Constant(value * 2.0 if value else 1.0), node)


def _negated_elsewhere(test: ast.expr) -> bool:
    """Conditions whose opposite is a fault of the comparison or of the `not` in them."""
    one = isinstance(test, ast.Compare) and len(test.ops) == 1
    return one or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _replaced(tree: ast.Module, old: ast.AST, new: ast.AST) -> ast.Module:
    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    # Only what lies on the way to the place is made anew; the tree itself stays as it is.
    memo: dict[int, object] = {id(old): old}
    made: ast.Module = Replace().visit(copy.deepcopy(tree, memo))
    return ast.fix_missing_locations(made)


def _words(node: ast.AST) -> str:
    """The node as one short line: of a compound statement its head."""
    return ast.unparse(node).splitlines()[0][:160]
