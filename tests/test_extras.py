"""Without an extra everything else works, and what needs it says in one sentence how to get it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from rtgp import datasets
from rtgp._extras import needs
from rtgp._report import Report, render
from rtgp.errors import NotInstalledError, RTGPError
from waiting import PATIENCE

PACKAGES = {"report": ("jinja2", "markupsafe", "matplotlib", "PIL"), "data": ("airportsdata", "pyarrow"),
            "botorch": ("botorch",)}  # fmt: skip
DRAWING = {"rtgp._report.figures", "rtgp._report.page", "rtgp._report.picture", "rtgp._report.prediction_plots",
           "rtgp._report.style", "rtgp._report.training_plots", "rtgp.botorch"}  # fmt: skip
# Python takes a module that is None in sys.modules for one that is not there.
_WITHOUT = "import sys\nfor name in {names!r}: sys.modules[name] = None\n"
_COMMAND = "from rtgp._cli import main\nsys.argv = ['rtgp', *{arguments!r}]\nmain()\n"
_IMPORT_ALL = """
import importlib, pkgutil, rtgp
for one in pkgutil.walk_packages(rtgp.__path__, "rtgp."):
    if one.name != "rtgp.__main__" and one.name not in {drawing!r} and not one.name.startswith({triton!r}):
        importlib.import_module(one.name)
print("done")
"""
# These import Triton, which comes with torch where it serves.
TRITON = ("rtgp.operators._gpu.", "rtgp._solvers.recordings", "rtgp._solvers.fused_iter")


def program(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


def rtgp_without(names: tuple[str, ...], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program `rtgp` where these packages are not installed."""
    return program(_WITHOUT.format(names=names) + _COMMAND.format(arguments=arguments), folder)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    x = pd.Series(range(40)) / 10
    pd.DataFrame({"x": x, "y": x**2}).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path


def test_the_whole_library_is_imported_without_any_extra(tmp_path: Path) -> None:
    names = tuple(name for packages in PACKAGES.values() for name in packages)
    done = program(_WITHOUT.format(names=names) + _IMPORT_ALL.format(drawing=DRAWING, triton=TRITON), tmp_path)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize(
    "missing",
    [PACKAGES["report"][0], *(pytest.param(name, marks=pytest.mark.slow) for name in PACKAGES["report"][1:-1])],
)
def test_fit_trains_and_saves_without_the_report(table: Path, missing: str) -> None:
    arguments = ("fit", "table.csv", "--target", "y", "--report", "report.html")
    done = rtgp_without((missing,), table, *arguments)
    assert done.returncode == 1
    assert "log marginal likelihood" in done.stdout
    assert "The model was saved to 'model', but its report 'report.html' could not be made" in done.stderr
    assert missing in done.stderr
    assert "pip install 'rtgp[report]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (table / "model" / "model.json").is_file()
    assert not (table / "report.html").exists()


def test_fit_and_predict_need_no_extra(table: Path) -> None:
    names = tuple(name for packages in PACKAGES.values() for name in packages)
    done = rtgp_without(names, table, "fit", "table.csv", "--target", "y")
    assert (done.returncode, done.stderr) == (0, "Model saved to model.\n")
    done = rtgp_without(names, table, "predict", "model", "table.csv", "--output", "out.csv")
    assert done.returncode == 0, done.stderr
    assert len((table / "out.csv").read_text().splitlines()) == 41


@pytest.mark.parametrize(
    "extra, missing, arguments",
    [
        ("data", "airportsdata", ["demo"]),
        pytest.param("data", "pyarrow", ["compare", "table.parquet"], marks=pytest.mark.slow),
        ("report", "jinja2", ["reproduce", "list"]),
        pytest.param("report", "PIL", ["reproduce", "list"], marks=pytest.mark.slow),
    ],
)
def test_a_command_names_the_extra(table: Path, extra: str, missing: str, arguments: list[str]) -> None:
    (table / "table.parquet").write_bytes(b"PAR1")
    done = rtgp_without((missing,), table, *arguments)
    assert done.returncode == 2, done.stderr
    assert missing in done.stderr
    assert f"pip install 'rtgp[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_models_for_botorch(tmp_path: Path) -> None:
    code = "import rtgp\ntry: import rtgp.botorch\nexcept rtgp.errors.NotInstalledError as error: print(error)"
    done = program(_WITHOUT.format(names=PACKAGES["botorch"]) + code, tmp_path)
    words = "rtgp.botorch needs the package botorch, which is not installed: pip install 'rtgp[botorch]'."
    assert done.stdout.strip() == words, done.stderr


def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DRAWING:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in (*PACKAGES["report"], *PACKAGES["data"]):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    with pytest.raises(RTGPError, match=r"A Parquet file needs the package pyarrow.*rtgp\[data\]"):
        datasets.read(tmp_path / "table.parquet")
    with pytest.raises(RTGPError, match=r"'us-airports' needs the package airportsdata.*rtgp\[data\]"):
        datasets.load("us-airports")
    with pytest.raises(NotInstalledError, match=r"A report needs the package .*rtgp\[report\]") as caught:
        render(Report("title", "", []))
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize("module", ["rtgp.missing", ""])
def test_a_fault_of_our_own_is_not_an_extra(module: str) -> None:
    with pytest.raises(ModuleNotFoundError), needs("data", "This"):
        raise ModuleNotFoundError("no", name=module)
