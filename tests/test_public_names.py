"""What `import rtgp` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import rtgp
from waiting import PATIENCE


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
    code = "import rtgp; from rtgp.methods import resolve_method; print(resolve_method('poe'), resolve_method('sggp'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("POE(")
