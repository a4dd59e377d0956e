"""The layers of the library as a table: the order from the linter's rule, the words from each module itself."""

from __future__ import annotations

import importlib
import inspect
import tomllib
from pathlib import Path
from typing import Any

from benchmark_tables import make_table
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

RULES = Path(__file__).parents[2] / "pyproject.toml"


def groups() -> list[list[str]]:
    """The modules of each layer, the highest layer first."""
    contracts = tomllib.loads(RULES.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    lines = next(one["layers"] for one in contracts if one["type"] == "layers")
    return [[name.strip(" ()") for name in line.split("|")] for line in lines]


def layers() -> list[tuple[str, str]]:
    """(module, its first sentence), the highest layer first."""
    return [(name, words_of(f"rtgp.{name}")) for names in groups() for name in names if name != "__main__"]


def words_of(module: str) -> str:
    """The first paragraph of its docstring, without marks of code."""
    text = inspect.getdoc(importlib.import_module(module)) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("`", "")


class Layers(SphinxDirective):
    """The directive: it takes nothing."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(RULES))
        number = {name: len(groups()) - k for k, names in enumerate(groups()) for name in names}
        rows = [[str(number[name]), name, words] for name, words in layers()]
        return [make_table(["layer", "module", "what it has"], rows)]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("layers", Layers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
