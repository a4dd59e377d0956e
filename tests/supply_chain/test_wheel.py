"""The wheel by itself, in an environment without the source tree: it has all it needs, and works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import rtgp
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import json, sys
import numpy as np
import rtgp
from importlib.metadata import version
X = np.linspace(0.0, 6.0, 60)[:, None]
gp = rtgp.GPRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
print(json.dumps([rtgp.__file__, version("rtgp"), float(np.abs(gp.predict(X) - np.sin(X[:, 0])).max())]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # From a copy: setuptools leaves a build folder where it builds. Its own, so that nothing is downloaded.
    copy = folder / "source"
    copy.mkdir()
    tracked = ["pyproject.toml", "README.md", "LICENSE"]
    beside = (ROOT / "reproduction").rglob("*")  # what must not get in
    for path in [*(ROOT / name for name in tracked), *(ROOT / "src").rglob("*"), *beside]:
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path):
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", str(copy), "--no-deps", "--no-build-isolation", "-q", "-w"]
    subprocess.run([*command, str(folder)], check=True, timeout=PATIENCE)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment that has the wheel and, by a .pth file, the dependencies of this one, but not its rtgp."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*command, str(wheel)], check=True, timeout=PATIENCE)
    (site,) = folder.glob("lib/python*/site-packages")
    # Added as it is, without the .pth files in it, one of which names the source tree.
    line = f"import sys; sys.path.append({sysconfig.get_paths()['purelib']!r})\n"
    (site / "dependencies.pth").write_text(line)
    return python


def ended(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(python), *arguments], cwd=cwd, env=plain, capture_output=True, text=True, timeout=PATIENCE
    )


def run(python: Path, *arguments: str, cwd: Path) -> str:
    done = ended(python, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "rtgp").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".pyo")
    }
    assert "rtgp/py.typed" in wanted
    assert any(name.startswith("rtgp/_report/templates/") for name in wanted)
    assert wanted <= names
    assert not any(name.startswith(("tests", "benchmarks", "docs", "reproduction")) for name in names)


@pytest.mark.slow
def test_it_is_used_without_the_source_tree(python: Path, tmp_path: Path) -> None:
    file, version, error = json.loads(run(python, "-c", _PROGRAM, cwd=tmp_path))
    assert Path(file).is_relative_to(python.parents[1])
    assert version == rtgp.__version__
    assert error < 1e-2
    assert rtgp.__version__ in run(python, "-m", "rtgp", "--version", cwd=tmp_path)


@pytest.mark.slow
def test_its_command_fits_reports_and_predicts(python: Path, tmp_path: Path) -> None:
    lines = [f"{k / 10},{(k / 10) ** 2}" for k in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    script = str(python.parent / "rtgp")
    run(python, script, "fit", "table.csv", "--target", "y", "--report", "report.html", cwd=tmp_path)
    run(python, script, "predict", "model", "table.csv", "--output", "out.csv", cwd=tmp_path)
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 41
    assert "<html" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_reproduction_is_not_in_it_and_the_command_says_where(python: Path, tmp_path: Path) -> None:
    done = ended(python, "-m", "rtgp", "reproduce", "list", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "clone of rtgp's repository" in done.stderr
    assert len(done.stderr.splitlines()) == 1
