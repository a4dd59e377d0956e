"""A seeded sample of faults, each tried against the tests that belong to its module: `make mutation`.

    python tests/mutation/run.py                  # goes on where it was interrupted
    python tests/mutation/run.py --again          # tries once more what survived (after tests were added)

Each fault is tried in a forked process that has the libraries loaded and imports rtgp with one module changed in
memory; no file is touched. The sources and tests are copied first, so that the tree may change meanwhile.
Results are rows of results.csv. A fault is killed when a test fails or the tests take longer than the limit.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import importlib.abc
import importlib.machinery
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from mutants import Mutant, mutants  # noqa: E402
from plan import SAMPLE, SEED, files_for  # noqa: E402

RESULTS = HERE / "results.csv"
KEY = ("module", "scope", "kind", "before", "after", "number")
COLUMNS = (*KEY, "line", "outcome", "seconds")
LIMIT = 600  # seconds of the processor for the tests without a fault; with one, twice what they took, and 5
Key = tuple[str, str, str, str, str, str]


def sample() -> list[tuple[str, Mutant]]:
    """The faults to try: for each part of the package its number, by a hash of their names, so that a change of one
    function leaves the sample of the others as it was."""
    chosen: list[tuple[str, Mutant]] = []
    for patterns, count in SAMPLE.items():
        paths = sorted(path for pattern in patterns for path in (ROOT / "src" / "rtgp").glob(pattern))
        every = [
            (str(path.relative_to(ROOT / "src")), mutant)
            for path in paths
            if path.name != "__init__.py"
            for mutant in mutants(path.read_text())
        ]
        taken = sorted(every, key=lambda one: hashlib.sha256(repr((SEED, key_of(*one))).encode()).digest())[:count]
        chosen += sorted(taken, key=lambda one: (one[0], one[1].line, key_of(*one)))
    return chosen


def key_of(module: str, mutant: Mutant) -> Key:
    return module, mutant.scope, mutant.kind, mutant.before, mutant.after, str(mutant.number)


class Changed(importlib.machinery.SourceFileLoader):
    """Loads one module from a changed syntax tree."""

    tree: Any = None

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: Path, tree: Any) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        loader = Changed(fullname, str(self.path))
        loader.tree = self.tree
        return importlib.machinery.ModuleSpec(fullname, loader, origin=str(self.path))


def attempt(copy: Path, module: str, tree: Any, tests: list[str], limit: int) -> tuple[str, float]:
    """("killed", "timeout" or "survived", seconds of the processor)."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # of the processor: other work does not count
        os._exit(_in_child(copy, module, tree, tests))
    end = time.monotonic() + 20 * limit  # for a fault that waits for ever
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    if code == int(pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"no tests were found for {module}")
    if code in (-signal.SIGKILL, -signal.SIGXCPU):
        return "timeout", seconds
    return ("survived" if code == 0 else "killed"), seconds


def _in_child(copy: Path, module: str, tree: Any, tests: list[str]) -> int:
    os.chdir(copy)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1), os.dup2(null, 2)
    sys.path.insert(0, str(copy / "src"))
    name = module.removesuffix(".py").replace("/", ".")
    sys.meta_path.insert(0, Finder(name, copy / "src" / module, tree))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:pytest_cov", "--no-header"]
    options += ["-m", "not slow and not gpu", "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is preloaded
    try:
        return int(pytest.main([*options, *tests]))
    except BaseException:  # a fault may do anything, also at import
        return 1


def preload() -> None:
    """What every process needs and no fault changes."""
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    import gpytorch  # noqa: F401
    import hypothesis  # noqa: F401
    import linear_operator  # noqa: F401
    import numpy  # noqa: F401
    import scipy.linalg
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)
    assert not any(name == "rtgp" or name.startswith("rtgp.") for name in sys.modules)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--again", action="store_true", help="try once more what survived")
    options.add_argument("--only", default="", help="modules whose path contains this")
    options.add_argument("--results", type=Path, default=RESULTS, help="the table to go on with and to write")
    asked = options.parse_args()
    preload()
    rows: dict[Key, dict[str, str]] = {}
    if asked.results.exists():
        with asked.results.open(newline="") as file:
            rows = {tuple(row[name] for name in KEY): row for row in csv.DictReader(file)}  # type: ignore[misc]
    chosen = sample()
    rows = {key: rows[key] for key in (key_of(*one) for one in chosen) if key in rows}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        plain: dict[tuple[str, ...], float] = {}
        for module, mutant in chosen:
            key = key_of(module, mutant)
            known = rows.get(key)
            if asked.only not in module or (known and not (asked.again and known["outcome"] == "survived")):
                continue
            outcome, seconds = "survived", 0.0
            for tests in files_for(module):
                if tuple(tests) not in plain:  # tests that fail by themselves would kill anything
                    tree = ast.parse((copy / "src" / module).read_text())
                    outcome, plain[tuple(tests)] = attempt(copy, module, tree, tests, LIMIT)
                    _say(f"{module}: {' '.join(tests)} take {plain[tuple(tests)]:.1f} s")
                    if outcome != "survived":
                        raise SystemExit("these tests do not pass without a fault")
                outcome, more = attempt(copy, module, mutant.make(), tests, 5 + int(2 * plain[tuple(tests)]))
                seconds += more
                if outcome != "survived":
                    break
            rows[key] = dict(zip(COLUMNS, (*key, str(mutant.line), outcome, f"{seconds:.1f}"), strict=True))
            _write(asked.results, rows, chosen)
            _say(f"{outcome:8s} {seconds:5.1f} s  {module}:{mutant.line}  {mutant.before}  ->  {mutant.after}")
    killed = sum(row["outcome"] != "survived" for row in rows.values())
    _say(f"{killed} of {len(rows)} killed")


def _write(results: Path, rows: dict[Key, dict[str, str]], chosen: list[tuple[str, Mutant]]) -> None:
    """In the order of the sample, whole or not at all."""
    beside = results.with_suffix(".tmp")
    with beside.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in (key_of(*one) for one in chosen) if key in rows)
    beside.replace(results)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
