"""Types in signatures: a link where the class has an entry under its public name, plain text where it is private or
another library's. Any other reference that leads nowhere stays an error (`sphinx -n`)."""

from __future__ import annotations

import builtins
import importlib
from typing import Any

from docutils import nodes
from public_names import public_names
from sphinx.util.nodes import make_refnode

LIBRARIES = {
    "botorch",
    "collections",
    "gpytorch",
    "linear_operator",
    "numpy",
    "os",
    "pathlib",
    "sklearn",
    "torch",
    "typing",
}
# Written in annotations under a short name.
SHORT = {
    "Any", "Array", "ArrayLike", "Callable", "Generator", "Kernel", "Path", "PathLike", "PredictionSettings", "Self",
    "Tensor", "npt.NDArray", "pd.DataFrame",
}  # fmt: skip


def exists(target: str) -> bool:
    """Whether a dotted name leads to something that can be imported."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part, None)
        return value is not None
    return False


def resolve(app: Any, env: Any, node: nodes.Element, content: nodes.Element) -> nodes.Node | None:
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    public = {one.name: one.full for names in public_names().values() for one in names}
    full = public.get(target.rpartition(".")[2])
    objects = env.get_domain("py").objects
    if full in objects:
        entry = objects[full]
        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, full)
    known = target.split(".")[0] in LIBRARIES or target in SHORT or hasattr(builtins, target) or exists(target)
    return content if known else None


def setup(app: Any) -> dict[str, bool]:
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
