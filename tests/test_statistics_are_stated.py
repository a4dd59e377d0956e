"""Every test that measures a scatter says how often it would fail by chance.

Seeds are fixed, so no test fails by chance as it stands. The false-alarm probability is that of a right change of the
random stream: who makes one has to know whether a failure says anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCATTER = {"std", "var", "cov", "corrcoef", "chisquare", "kstest", "largest_z", "z_scores", "mean_and_error"}
# They call one of these, and nothing in them is random: data that are standardised, or a straight line.
EXACT = {
    "test_any_unit_is_standardised",
    "test_botorch_model_with_an_input_transform",
    "test_data_are_standardised_on_the_whole_training_part",
    "test_geometric_decay",
    "test_split_standardises_on_the_training_part_only",
    "test_standard_errors_of_other_models",
    "test_the_real_sets",
}


def scatter_tests(source: str) -> Iterator[tuple[str, bool]]:
    """(name, whether it states its false alarm): in its own lines, or in a docstring around it."""
    yield from _tests_in(ast.parse(source), "", source)


def _tests_in(node: ast.Module | ast.ClassDef, around: str, source: str) -> Iterator[tuple[str, bool]]:
    around += ast.get_docstring(node) or ""
    for one in node.body:
        if isinstance(one, ast.ClassDef):
            yield from _tests_in(one, around, source)
        elif isinstance(one, ast.FunctionDef) and one.name.startswith("test_") and SCATTER & set(_names(one)):
            words = around + (ast.get_source_segment(source, one) or "")
            yield one.name, "false alarm" in " ".join(words.lower().replace("-", " ").split())


def _names(function: ast.FunctionDef) -> Iterator[str]:
    """Of what is called, or handed on to be called on other ranks."""
    for call in (one for one in ast.walk(function) if isinstance(one, ast.Call)):
        if isinstance(call.func, ast.Name):
            yield call.func.id
        for one in (call.func, *call.args):
            if isinstance(one, ast.Attribute) and (one is call.func or one.attr == "z_scores"):
                yield one.attr


FILES = sorted(path for path in HERE.rglob("test_*.py") if path != Path(__file__))
FOUND = [(path, *one) for path in FILES for one in scatter_tests(path.read_text(encoding="utf-8"))]


def test_every_statistical_test_states_its_false_alarm() -> None:
    silent = [f"{path.relative_to(HERE)}: {name}" for path, name, stated in FOUND if not stated and name not in EXACT]
    assert not silent, "state the false-alarm probability in the docstring, or add it to EXACT if nothing is random"


def test_the_exceptions_are_in_use() -> None:
    assert {name for _, name, stated in FOUND if not stated} == EXACT


def test_there_is_something_to_look_at() -> None:
    assert len(FOUND) > 30


@pytest.mark.parametrize(
    ("words", "stated"),
    [("", False), ("Mean zero.", False), ("False alarm 1e-4.", True), ("It has a false-alarm\n    probability.", True)],
)
def test_a_silent_one_is_found(words: str, stated: bool) -> None:
    body = f'    """{words}"""\n    assert abs(x.mean() / x.std()) < 4\n'
    assert list(scatter_tests(f"def test_a():\n{body}")) == [("test_a", stated)]
    around = f'class TestB:\n    """{words}"""\n    def test_b(self):\n        assert z_scores(x).max() < 4\n'
    assert list(scatter_tests(around)) == [("test_b", stated)]
    assert list(scatter_tests("def helper(x):\n    return x.std()\n")) == []
