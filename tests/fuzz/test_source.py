"""Nothing in the source can run what a file says: no pickle, no eval, no shell."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
FILES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "reproduction").rglob("*.py")])
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "code", "xmlrpc"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
ATTRIBUTES = {
    "os.system", "os.popen", "os.execv", "os.execve", "os.spawnv", "pd.read_pickle", "pandas.read_pickle", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load", "torch.hub.load", "torch.jit.load", "importlib.import_module",
}  # fmt: skip
OBJECTS = {"all_gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list"}  # pickle inside
RANKS = SOURCE / "rtgp" / "distributed" / "_group.py"  # the ranks of one job trust each other; no file is involved


def faults(text: str) -> list[str]:
    """'line: what' for everything forbidden."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if (node.module or "").partition(".")[0] in MODULES else []
        elif isinstance(node, ast.Call):
            names = _call(node)
        found += [f"{node.lineno}: {name}" for name in names]
    return found


def _call(node: ast.Call) -> list[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    found = []
    if name in CALLS or name in ATTRIBUTES or name.rpartition(".")[2] in OBJECTS:
        found.append(name)
    if name == "torch.load" and given.get("weights_only") != "True":
        found.append("torch.load without weights_only=True")
    if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
        found.append("np.load without allow_pickle=False")
    elif given.get("allow_pickle", "False") != "False":
        found.append("allow_pickle")
    if given.get("shell", "False") != "False":
        found.append("a shell")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_way_to_run_what_a_file_says(path: Path) -> None:
    found = [fault for fault in faults(path.read_text()) if path != RANKS or fault.rpartition(".")[2] not in OBJECTS]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "import torch.nn, dill.session",
        "x = eval(text)",
        "exec('pass')",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "numpy.lib.format.read_array(file, allow_pickle=True)",
        "yaml.load(text)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
        "pd.read_pickle(path)",
        "dist.all_gather_object(found, thing)",
    ],
)
def test_the_test_sees(text: str) -> None:
    assert len(faults(text)) == 1


def test_the_test_leaves_the_rest_alone() -> None:
    good = (
        "model.eval(); torch.load(p, weights_only=True); np.load(p, allow_pickle=False); re.compile('x'); run(['ls'])"
    )
    assert faults(good) == []
