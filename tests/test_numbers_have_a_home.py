"""Numbers that decide something are fields of settings: by the syntax tree of the rooms where training happens.

A number in a module can only be changed by patching it. As a field of a frozen object it is an argument, and an
ablation, a checkpoint and a test see it.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rtgp
from gp_models import airports, make
from rtgp._objectives import CholeskySettings, EstimateSettings, LadderSettings
from rtgp._objectives.control_coefficients import CoefficientSettings
from rtgp._persistence.description import describe_settings, make_settings
from rtgp._preconditioners.policy_settings import PolicySettings
from rtgp.diagnostics._settings import DiagnosisSettings
from rtgp.posterior._settings import PredictionSettings
from rtgp.training._settings import TrainingSettings

SOURCE = Path(rtgp.__file__).parent
ROOMS = ("_baselines", "training", "_objectives", "_preconditioners", "posterior")

FILE = "what is read from files and written to them"
TILE = "the size of a piece of work, which changes no result"
ROUNDING = "rounding in a number format"
DEFAULT = "what a public argument means that says nothing"
PAPER = "the paper's, where a public argument says nothing"
MAY_STAY = {
    FILE: {
        "training/_checkpoint.py": {"FORMAT", "_KEPT", "_PATIENCE", "_LARGEST_JSON"},
        "training/_history.py": {"LARGEST"},
        "_objectives/term_sizes.py": {"_MOST_CALLS"},
        "_objectives/control_coefficients.py": {"_ROUNDING"},
        "_preconditioners/low_rank.py": {"_ORTHONORMAL"},
    },
    TILE: {
        "_baselines/svgp/training.py": {"_CHUNK"},
        "_objectives/fourier_algebra.py": {"_BLOCK", "_KEPT"},
        "_preconditioners/nystroem_control.py": {"_ENTRIES", "_ENTRIES_ON_CARD"},
        "posterior/_paths.py": {"_NUMBERS"},
        "posterior/_prior.py": {"_SLAB_BYTES", "_SLAB_POINTS"},
        "posterior/_solver.py": {"_ARRAYS", "_BYTES", "_BLOCK", "_COLUMNS"},
        "posterior/_tape.py": {"_BLOCK", "_KEPT"},
        "_baselines/svgp/posterior.py": {"_BYTES"},
    },
    ROUNDING: {
        "_objectives/reading.py": {"_SAME"},
        "_preconditioners/pivoted_cholesky.py": {"_ROUNDING"},
        "_baselines/poe/posterior.py": {"_LEAST"},
        "_baselines/svgp/model.py": {"JITTER"},
    },
    DEFAULT: {"_baselines/poe/settings.py": {"EXPERT_SIZE"}, "_baselines/svgp/settings.py": {"INDUCING"}},
    PAPER: {"_objectives/fourier.py": {"DEFAULT_FEATURES"}, "_baselines/sggp.py": {"NEIGHBOURS"}},
}
ALLOWED = {(file, name) for files in MAY_STAY.values() for file, names in files.items() for name in names}


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that run when a module is loaded."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def constants(tree: ast.Module) -> set[str]:
    """The names that a module gives to numbers, or to what is made of them."""
    found = set()
    for statement in _statements(tree.body):
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
            targets = [statement.target]
        else:
            continue
        if statement.value is not None and any(map(_is_number, ast.walk(statement.value))):
            found |= {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return found


def read_behind_the_back(tree: ast.Module) -> set[str]:
    """Default instances that code reads other than as the default of an argument: what a caller passes is not heard."""
    defaults: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            defaults += [*node.defaults, *node.kw_defaults]
        elif isinstance(node, ast.ClassDef):  # the fields of a dataclass are arguments too
            defaults += [field.value for field in node.body if isinstance(field, ast.AnnAssign)]
    given = {id(node) for default in defaults if default is not None for node in ast.walk(default)}
    loaded = (node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute)))
    read = {_name(node) for node in loaded if isinstance(node.ctx, ast.Load) and id(node) not in given}
    return read & {"DEFAULT", "_DEFAULT"}


def _name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _trees() -> dict[str, ast.Module]:
    files = [path for room in ROOMS for path in sorted((SOURCE / room).rglob("*.py"))]
    assert {path.relative_to(SOURCE).parts[0] for path in files} == set(ROOMS)
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in files}


def test_numbers_are_fields_of_settings() -> None:
    found = {(file, name) for file, tree in _trees().items() for name in constants(tree)}
    assert not found - ALLOWED, "make these fields of a frozen settings object, or say why they may stay"
    assert not ALLOWED - found, "these are gone: take them off the list"


def test_no_default_is_read_behind_the_callers_back() -> None:
    found = {file: names for file, tree in _trees().items() if (names := read_behind_the_back(tree))}
    assert not found


@pytest.mark.parametrize(
    "code, names",
    [
        ("_SHARE = 0.3", {"_SHARE"}),
        ("_LIMITS: dict[str, float] = {'cpu': 3.0}", {"_LIMITS"}),
        ("_LEAST, _MOST = -1, 2**20", {"_LEAST", "_MOST"}),
        ("if True:\n    try:\n        LIMIT = 5\n    except ImportError:\n        OTHER = 6", {"LIMIT", "OTHER"}),
        ("DEFAULT = Settings(steps=3)", {"DEFAULT"}),
        ("DEFAULT = Settings()\nNAMES = ('a', 'b')\nFAST = True", set()),
        ("class Settings:\n    steps: int = 3\n\ndef f(x=2):\n    y = 3", set()),
    ],
)
def test_what_the_test_would_find(code: str, names: set[str]) -> None:
    assert constants(ast.parse(code)) == names


def test_what_the_test_of_defaults_would_find() -> None:
    assert read_behind_the_back(ast.parse("def f():\n    return DEFAULT.steps")) == {"DEFAULT"}
    assert read_behind_the_back(ast.parse("def f():\n    return start.DEFAULT")) == {"DEFAULT"}
    assert read_behind_the_back(ast.parse("def f(a, s=DEFAULT, *, t=start.DEFAULT.part): ...")) == set()
    assert read_behind_the_back(ast.parse("class Ladder:\n    settings: Settings = DEFAULT")) == set()


def _parts(settings: Any) -> Iterator[Any]:
    yield settings
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _parts(value)


ROOTS = (TrainingSettings, EstimateSettings, CholeskySettings, LadderSettings, PredictionSettings, DiagnosisSettings)


@pytest.mark.parametrize("root", ROOTS)
def test_every_number_has_a_sentence(root: type) -> None:
    """Frozen all the way down, and each field is named in the text of its class."""
    for part in _parts(root()):
        cls = type(part)
        assert cls.__dataclass_params__.frozen
        missing = [f.name for f in dataclasses.fields(cls) if f.name not in (cls.__doc__ or "")]
        assert not missing, f"{cls.__name__} does not say what these do: {missing}"


OTHER = EstimateSettings(PolicySettings(doubt=1.0), CoefficientSettings(fixed=(0.25, 0.75)))


@pytest.mark.parametrize("method", [rtgp.RRCG, rtgp.CG])
def test_a_methods_settings_reach_its_objective(method: type[rtgp.RRCG | rtgp.CG]) -> None:
    objective = method(_settings=OTHER).make_objective()
    assert objective._policy.settings.doubt == 1.0
    assert objective._control_variate._coefficients.values(0.5).tolist() == [0.25, 0.75]
    assert method(_settings=OTHER) != method()


def test_they_are_no_part_of_a_saved_model() -> None:
    described = describe_settings(rtgp.RRCG(probes=3, _settings=OTHER))
    assert make_settings(described) == rtgp.RRCG(probes=3)
    assert repr(rtgp.RRCG(_settings=OTHER)) == repr(rtgp.RRCG())


def test_a_checkpoint_tells_them_apart(tmp_path: Path) -> None:
    X, y = airports(60, dtype=torch.float64)

    def train(method: rtgp.RRCG) -> rtgp.FitResult:
        model = make(X, y)
        return rtgp.fit(model, model.likelihood, X, y, method, "adam", steps=2, checkpoint=tmp_path)

    train(rtgp.RRCG(_settings=OTHER))
    with pytest.raises(rtgp.errors.RTGPError, match="internal settings of the method"):
        train(rtgp.RRCG())
