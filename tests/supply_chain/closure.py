"""What is installed because rtgp asks for it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(*extras: str) -> dict[str, Distribution]:
    """The distributions that pyproject.toml asks for, with these extras, and all that those need, by canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, Distribution] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonical(project["name"]), frozenset(extras))]
    while waiting:
        name, asked = waiting.pop()
        if (name, asked) in done:
            continue
        done.add((name, asked))
        if name == canonical(project["name"]):
            parts = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in asked)]
            needs = [words for part in parts for words in part]
        else:
            found[name] = distribution(name)
            needs = found[name].requires or []
        wanted = [one for one in map(Requirement, needs) if _applies(one, asked)]
        waiting += [(canonical(one.name), frozenset(one.extras)) for one in wanted]
    return found


def _applies(needed: Requirement, extras: frozenset[str]) -> bool:
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))
