"""The makers of faults make faults, and of the sample that was tried the tests noticed enough."""

from __future__ import annotations

import ast
import csv
import itertools
from pathlib import Path

import pytest

from mutation.mutants import mutants
from mutation.plan import SAMPLE, files_for

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEY = ("module", "scope", "kind", "before", "after", "number")
_SOURCE = '''
from typing import Literal
__all__ = ["f"]
Alias = int | str

class C:
    size: Literal[3] = 3

    def f(self, a: Literal[1], b=2.0):
        """Of 5."""
        if not a < b <= 4:
            raise ValueError(f"got {a + 1}")
        a -= 1
        return -a if a and b else zip(a, b, strict=True)
'''


_ZIP = "zip(a, b, strict=True)"


def test_faults_of_every_kind_are_made_and_only_where_they_should() -> None:
    found = {(m.scope, m.kind, m.before, m.after) for m in mutants(_SOURCE)}
    assert found == {
        ("C", "constant", "3", "4"),
        ("C.f", "constant", "2.0", "4.0"),
        ("C.f", "constant", "4", "5"),
        ("C.f", "constant", "1", "2"),
        ("C.f", "comparison", "a < b <= 4", "a <= b <= 4"),
        ("C.f", "comparison", "a < b <= 4", "a >= b <= 4"),
        ("C.f", "comparison", "a < b <= 4", "a < b < 4"),
        ("C.f", "comparison", "a < b <= 4", "a < b > 4"),
        ("C.f", "boolean", "not a < b <= 4", "a < b <= 4"),
        ("C.f", "boolean", "a and b", "a or b"),
        ("C.f", "condition", f"-a if a and b else {_ZIP}", f"-a if not (a and b) else {_ZIP}"),
        ("C.f", "statement", "raise ValueError(f'got {a + 1}')", "pass"),
        ("C.f", "arithmetic", "a -= 1", "a += 1"),
        ("C.f", "sign", "-a", "a"),
        ("C.f", "return", f"return -a if a and b else {_ZIP}", "return None"),
    }  # fmt: skip


def test_each_fault_changes_the_program_in_one_place() -> None:
    plain = ast.unparse(ast.parse(_SOURCE)).splitlines()
    for mutant in mutants(_SOURCE):
        tree = mutant.make()
        compile(tree, "changed", "exec")
        changed = ast.unparse(tree).splitlines()
        assert len(changed) == len(plain)
        assert sum(a != b for a, b in zip(changed, plain, strict=True)) == 1


def test_every_module_that_is_sampled_has_tests() -> None:
    for patterns in SAMPLE:
        for pattern in patterns:
            paths = list((ROOT / "src" / "rtgp").glob(pattern))
            assert paths, pattern
            for path in paths:
                if path.name != "__init__.py":
                    for name in itertools.chain(*files_for(str(path.relative_to(ROOT / "src")))):
                        assert (ROOT / name).is_file()


@pytest.fixture(scope="module")
def results() -> list[dict[str, str]]:
    with (HERE / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_most_faults_were_noticed(results: list[dict[str, str]]) -> None:
    assert len({tuple(row[name] for name in KEY) for row in results}) == len(results) >= 150
    killed = sum(row["outcome"] in ("killed", "timeout") for row in results)
    assert killed >= 0.85 * len(results)


def test_every_fault_that_was_not_is_explained(results: list[dict[str, str]]) -> None:
    """Either it changes nothing that anybody could see, or it says what is not tested."""
    with (HERE / "survivors.csv").open(newline="") as file:
        explained = {tuple(row[name] for name in KEY): row for row in csv.DictReader(file)}
    assert all(len(row["reason"]) > 20 and row["verdict"] in ("equivalent", "gap") for row in explained.values())
    survived = {tuple(row[name] for name in KEY) for row in results if row["outcome"] == "survived"}
    assert survived == explained.keys()
