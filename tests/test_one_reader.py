"""Only `_objectives/reading.py`, with the files it is made of, touches the parts of a user's model: by the syntax tree
of every other file."""

from __future__ import annotations

import ast
from pathlib import Path

import rtgp

SOURCE = Path(rtgp.__file__).parent
READER = "_objectives/reading.py"
ITS_FILES = {f"_objectives/reading_{matter}.py" for matter in ("inputs", "noise", "rows")}
PARTS = {"covar_module", "mean_module", "train_inputs", "train_targets", "noise_covar", "second_noise", "raw_noise"}

# Models that are our own, made and described by us.
EXCEPTIONS = {
    "_estimator/model.py": "makes the model of GPRegressor",
    "_estimator/fitting.py": "hands the parts of GPRegressor's own model to SVGP's",
    "_baselines/poe/model.py": "the class of POE's model",
    "_baselines/svgp/model.py": "the class of SVGP's model",
    "_baselines/svgp/training.py": "trains SVGP's own model",
    "_baselines/svgp/posterior.py": "predicts from SVGP's own model",
    "diagnostics/_subject.py": "makes the model that is diagnosed where bare data are given",
    "_estimator/saving.py": "saves the kernel of GPRegressor's own model",
    "_estimator/regressor.py": "shows the kernel of its own model",
}


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def touched(tree: ast.AST) -> set[str]:
    """The parts of a model that code reads or writes, by attribute or by getattr and the like."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of_likelihood = node.attr == "noise" and _last_name(node.value).endswith("likelihood")
            if node.attr in PARTS or of_likelihood:
                found.add(node.attr)
        elif isinstance(node, ast.Call) and _last_name(node.func) in ("getattr", "hasattr", "setattr"):
            found |= {one.value for one in node.args if isinstance(one, ast.Constant) and one.value in PARTS}
    return found


def _excepted(file: str) -> bool:
    return file in EXCEPTIONS or file.split("/")[0] in EXCEPTIONS


def test_nobody_else_reads_a_model() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    readers = {name: touched(ast.parse(path.read_text())) for name, path in files.items()}
    others = {name: parts for name, parts in readers.items() if parts and not _excepted(name)}
    others = {name: parts for name, parts in others.items() if name not in {READER, *ITS_FILES}}
    assert not others, f"read these through {READER}: {others}"


def test_nobody_else_imports_its_files() -> None:
    """They are the reader's own: everybody else asks it."""
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name not in {READER, *ITS_FILES}:
            assert "objectives.reading_" not in path.read_text(), name


def test_no_exception_without_need() -> None:
    for name in EXCEPTIONS:
        paths = [SOURCE / name] if name.endswith(".py") else sorted((SOURCE / name).rglob("*.py"))
        assert any(touched(ast.parse(path.read_text())) for path in paths), f"{name} needs no exception"


def test_what_the_test_would_find() -> None:
    assert touched(ast.parse("model.likelihood.noise")) == {"noise"}
    assert touched(ast.parse("x = own.train_inputs[0]; y = own.train_targets")) == {"train_inputs", "train_targets"}
    assert touched(ast.parse("getattr(model, 'covar_module', None)")) == {"covar_module"}
    assert touched(ast.parse("batch.noise")) == set()
