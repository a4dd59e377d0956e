"""Pages of the API reference, written before Sphinx reads its sources: one for each public module, one of commands."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

from commands import commands_page
from public_names import Name, public_names

FOLDER = "api"  # below the sources; ignored by git
DETAILS = {
    "class": (":members:",),
    "exception": (":show-inheritance:",),
    "function": (),
    "data": (":no-value:",),
}
HIDDEN = {"rtgp.posterior"}
SKIPPED = ("_request",)  # methods that scikit-learn adds to every estimator


def module_page(path: str, names: list[Name]) -> str:
    """reStructuredText: the module's own words, then every public name of it."""
    words = inspect.getdoc(importlib.import_module(path)) or ""
    # `rtgp.posterior` is a function too, and that is what a reader looks for under this name.
    hidden = ["   :no-index:"] if path in HIDDEN else []
    lines = [
        path,
        "=" * len(path),
        "",
        f".. module:: {path}",
        *hidden,
        "",
        words.split("\n\n")[0].replace("*", r"\*"),
        "",
    ]
    for one in names:
        lines += [f".. auto{one.kind}:: {one.full}", *(f"   {option}" for option in DETAILS[one.kind]), ""]
    return "\n".join(lines)


def index_page(paths: list[str]) -> str:
    """The tree of contents of the reference."""
    lines = ["API reference", "=============", ""]
    lines += ["Made from the source: every public name, with its own words.", ""]
    lines += [".. toctree::", "   :maxdepth: 1", "", *(f"   {path}" for path in paths), "   commands", ""]
    return "\n".join(lines)


def write_pages(app: Any) -> None:
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    found = public_names()
    pages = {path: module_page(path, names) for path, names in found.items()}
    pages |= {"index": index_page(list(found)), "commands": commands_page()}
    for name, text in pages.items():
        target = folder / f"{name}.rst"
        if not target.is_file() or target.read_text(encoding="utf-8") != text:  # else Sphinx would read it again
            target.write_text(text, encoding="utf-8")


def skip(app: Any, what: str, name: str, value: object, skipped: bool, options: object) -> bool | None:
    return True if name.startswith("set_") and name.endswith(SKIPPED) else None


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
