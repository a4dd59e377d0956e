"""What `import rtgp` offers, and what it does not load."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import rtgp
from waiting import PATIENCE

SOURCE = Path(rtgp.__file__).parent
PUBLIC = {"botorch", "datasets", "diagnostics", "distributed", "errors", "operators", "posterior", "tables"}
PUBLIC |= {"training", "truncation"}


def test_what_is_not_public_is_private_by_name() -> None:
    """A path to a module is `rtgp`, one public name, or has a part that begins with an underscore."""
    open_ = {path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py")}
    open_ = {path.parent if path.name == "__init__" else path for path in open_}
    open_ = {path for path in open_ if path.parts and not any(part.startswith("_") for part in path.parts)}
    assert {path.as_posix() for path in open_} == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"errors"}))
def test_a_public_package_lists_its_names(name: str) -> None:
    package = importlib.import_module(f"rtgp.{name}")
    assert package.__all__
    assert all(hasattr(package, public) for public in package.__all__)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(rtgp, name) for name in rtgp.__all__)
    assert {"FitResult", "GPRegressor", "History", "Posterior", "fit", "posterior"} <= set(rtgp.__all__)
    assert {"CG", "Cholesky", "RFF", "RRCG", "SSRFF", "Vecchia"} <= set(rtgp.__all__)


def test_the_estimators_library_is_loaded_on_first_use() -> None:
    code = (
        "import sys, rtgp; before = 'sklearn' in sys.modules; rtgp.GPRegressor; print(before, 'sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_method_by_name_needs_no_further_import() -> None:
    """The baselines enter their names when rtgp is imported, though their training is loaded on first use."""
    code = "import rtgp; from rtgp._methods import resolve_method; print(resolve_method('poe'), resolve_method('sggp'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("POE(")
