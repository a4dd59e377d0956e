"""`import rtgp` is quick beyond torch: what is heavy is loaded by what needs it."""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import json, sys, time
import torch
before, began = set(sys.modules), time.process_time()
import rtgp
seconds = time.process_time() - began
loaded = set(sys.modules) - before
rooms = sorted(name for name in loaded if name.startswith("rtgp.") and name.count(".") == 1)
print(json.dumps([seconds, sorted({name.partition(".")[0] for name in loaded}), rooms]))
"""
HEAVY = {"IPython", "jinja2", "matplotlib", "pandas", "pyarrow", "rich", "scipy", "sklearn", "triton", "typer"}


def test_less_than_two_seconds_beyond_torch_and_nothing_heavy() -> None:
    """Time of the processor, the better of two runs: what else the machine does must not matter."""
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", _PROGRAM], text=True)) for _ in range(2)]
    assert min(seconds for seconds, *_ in runs) < 2.0
    assert not HEAVY & set(runs[0][1])
    assert "gpytorch" in runs[0][1]


def test_rooms_above_the_likelihood_are_loaded_on_first_use() -> None:
    *_, rooms = json.loads(subprocess.check_output([sys.executable, "-c", _PROGRAM], text=True))
    assert "rtgp.posterior" in rooms
    above = {"rtgp._cli", "rtgp.diagnostics", "rtgp._estimator", "rtgp._report", "rtgp.training"}
    assert not above & set(rooms)
