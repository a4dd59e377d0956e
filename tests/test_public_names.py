"""What `import rtgp` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import rtgp


def test_every_public_name_is_there() -> None:
    assert all(hasattr(rtgp, name) for name in rtgp.__all__)
    assert {"FitResult", "GPRegressor", "History", "Posterior", "fit", "posterior"} <= set(rtgp.__all__)
    assert {"CG", "Cholesky", "RFF", "RRCG", "SSRFF", "Vecchia"} <= set(rtgp.__all__)


def test_the_estimators_library_is_loaded_on_first_use() -> None:
    code = (
        "import sys, rtgp; before = 'sklearn' in sys.modules; rtgp.GPRegressor; print(before, 'sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "True"]
