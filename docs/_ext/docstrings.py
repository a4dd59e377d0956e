"""Docstrings as they are written here (plain sentences, `name: meaning` lines) as reStructuredText.

The fields of a dataclass, which the source explains by a comment on each line, are listed below its docstring.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

_CODE = re.compile(r"(`[^`]+`)")
_ITEM = re.compile(r"^(?P<names>\w+(?:, \w+)*) ?: (?P<text>.*)$")
_FIELD = re.compile(r"^    (?P<name>[a-z]\w*): .*?  # (?P<words>.+)$")


def escape(text: str) -> str:
    """Plain text: `code` stays code, nothing else is markup."""
    parts = _CODE.split(text)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"`{part}`"
        else:
            part = re.sub(r"([\\*|])", r"\\\1", part)
            parts[i] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part)
    return "".join(parts)


def convert(lines: list[str], parameters: set[str]) -> list[str]:
    """`lines` of a docstring; those that begin with one of the `parameters` and a colon become items of a list."""
    out: list[str] = []
    section = item = False
    i = 0
    while i < len(lines):
        line = lines[i]
        if i + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[i + 1].strip()):
            out += ["", f".. rubric:: {line.strip()}", ""]
            section, item, i = True, False, i + 2
            continue
        found = _ITEM.match(line)
        if found and (section or set(found["names"].split(", ")) <= parameters):
            if not item:
                out.append("")
            out.append(f"- **{escape(found['names'])}**: {escape(found['text'])}")
            item = True
        elif not line.strip():
            out.append("")
            item = item and section
        elif item:
            out.append(f"  {escape(line.strip())}")
        elif line.startswith("    ") and not section:
            if out and not out[-1].strip():
                out += ["::", ""]
            out.append(line)
        else:
            out.append(escape(line))
        i += 1
    return [*out, ""]


def fields(value: object) -> list[str]:
    """The commented fields of a dataclass, as a list."""
    if not (inspect.isclass(value) and dataclasses.is_dataclass(value)):
        return []
    names = {field.name for field in dataclasses.fields(value)}
    found = [match for line in inspect.getsource(value).splitlines() if (match := _FIELD.match(line))]
    return ["", *(f"- **{one['name']}**: {escape(one['words'])}" for one in found if one["name"] in names), ""]


def _parameters(value: Any) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return set()


def process(app: Any, what: str, name: str, value: Any, options: object, lines: list[str]) -> None:
    # A dataclass without words of its own has its signature as docstring, which stands above it anyway.
    own = [] if dataclasses.is_dataclass(value) and lines and lines[0].startswith(f"{value.__name__}(") else lines
    lines[:] = convert(own, _parameters(value)) + fields(value)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
