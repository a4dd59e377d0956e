"""Every package that is imported is declared in pyproject.toml, where it belongs: by the syntax trees of all files."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from supply_chain.closure import ROOT, canonical

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Where the library may import the packages of an extra.
ROOMS = {
    "botorch": {"botorch/_fitting.py", "botorch/_model.py", "botorch/_sampling.py", "botorch/_wrapping.py",
                "posterior/_units.py"},
    "report": {"_report/figures.py", "_report/page.py", "_report/picture.py", "_report/prediction_plots.py",
               "_report/style.py", "_report/training_plots.py"},
    "data": {"datasets/_parquet_files.py", "datasets/_registry.py"},
}  # fmt: skip
WITH_TORCH = "triton"  # a build of torch for NVIDIA cards brings its own; elsewhere no such kernel is imported
IMPORTED_AS = {name: canonical(found[0]) for name, found in packages_distributions().items()}
ROOMS_BESIDE = ("reproduction", "tests", "benchmarks", "docs", "tools")
LIBRARY = sorted((ROOT / "src").rglob("*.py"))
BESIDE = [path for room in ROOMS_BESIDE for path in sorted((ROOT / room).rglob("*.py"))]
OWN = {"rtgp", *(path.stem for path in BESIDE), *(path.parent.name for path in BESIDE)}


def imported(tree: ast.AST) -> set[str]:
    """The names of the packages that code imports, wherever in a file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names


def distributions(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    """(file, distribution of a package that it imports)."""
    for path in paths:
        for name in imported(ast.parse(path.read_text())) - OWN:
            yield path, IMPORTED_AS.get(name, canonical(name))


def declared(words: list[str]) -> set[str]:
    """The distributions of a list of requirements, those of extras that it names included."""
    found = set()
    for one in map(Requirement, words):
        found |= {canonical(one.name)} - {"rtgp"}
        found |= {name for extra in one.extras for name in declared(EXTRAS[extra])} if one.name == "rtgp" else set()
    return found


HARD = declared(PROJECT["dependencies"])


def test_the_library_imports_what_is_declared_where_it_may() -> None:
    wrong = []
    for path, name in distributions(LIBRARY):
        file = path.relative_to(ROOT / "src" / "rtgp").as_posix()
        rooms = [extra for extra, files in ROOMS.items() if file in files]
        allowed = HARD.union({WITH_TORCH}, *(declared(EXTRAS[extra]) for extra in rooms))
        wrong += [f"{file}: {name}"] if name not in allowed else []
    assert not wrong, "declare these, or import them where their extra is asked for"


def test_nothing_is_declared_that_is_not_imported() -> None:
    everything = {name for _, name in distributions(LIBRARY + list((ROOT / "reproduction").rglob("*.py")))}
    assert HARD | declared(EXTRAS["all"]) <= everything


def test_each_room_needs_its_extra() -> None:
    for extra, files in ROOMS.items():
        for file in files:
            names = {name for _, name in distributions([ROOT / "src" / "rtgp" / file])}
            assert names & declared(EXTRAS[extra]), f"{file} needs no {extra!r}"


def test_what_is_beside_the_library_imports_what_development_declares() -> None:
    allowed = HARD | declared(EXTRAS["dev"]) | {WITH_TORCH}
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path, name in distributions(BESIDE) if name not in allowed]
    assert not wrong


def test_no_file_of_our_own_hides_a_dependency() -> None:
    assert OWN & IMPORTED_AS.keys() <= {"rtgp", "docs"}  # BoTorch's wheel has a folder of pages too


def test_the_extras_hold_together() -> None:
    assert declared(EXTRAS["all"]) == declared(EXTRAS["report"]) | declared(EXTRAS["data"])
    for extra in ("test", "docs", "dev"):
        assert declared(EXTRAS["all"]) <= declared(EXTRAS[extra])
    assert not HARD & declared(EXTRAS["all"])


@pytest.mark.parametrize(
    "code, names",
    [
        ("import numpy.linalg as la, os", {"numpy"}),
        ("def f():\n    from PIL import Image", {"PIL"}),
        ("if TYPE_CHECKING:\n    import pandas as pd", {"pandas"}),
        ("from . import beside\nfrom __future__ import annotations", set()),
    ],
)
def test_what_the_test_would_find(code: str, names: set[str]) -> None:
    assert imported(ast.parse(code)) == names
