"""The pages of the documentation taken apart: fenced blocks in their order, hidden set-up, and what is not run.

A page may hold, as comments that no reader sees,

    <!-- before: CODE -->         Python that is run before the next block: what the reader is said to have
    <!-- not run: REASON -->      the next block is not run
    <!-- tolerance: NUMBER -->    of the numbers in the next output, relative

A `text` block right behind a block that is run is its output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Made from the sources by other programs, which have tests of their own.
GENERATED = DOCS / "api"

_COMMENT = re.compile(r"<!--\s*(before|not run|tolerance):(.*?)-->", re.DOTALL)
_FENCE = re.compile(
    r"^(?P<mark>```+|~~~+)(?P<language>[^`\n]*)\n(?P<text>.*?)^(?P=mark)[ \t]*$", re.DOTALL | re.MULTILINE
)
_TOKEN = re.compile(f"{_COMMENT.pattern}|{_FENCE.pattern}", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    text: str
    line: int  # of the file, from 1: where the text begins
    before: str  # hidden set-up
    not_run: str  # the reason, or ""
    tolerance: float | None
    follows: bool  # right behind the block before it

    @property
    def commands(self) -> list[str]:
        """The lines that call the program `rtgp`, if this is a block of a shell."""
        if self.language not in ("", "shell"):
            return []
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.startswith("rtgp ")]

    @property
    def runs(self) -> bool:
        return not self.not_run and (self.language == "python" or bool(self.commands))


def pages() -> list[Path]:
    """README and every page of the documentation that is written by hand."""
    found = sorted(path for path in DOCS.rglob("*.md") if GENERATED not in path.parents)
    return [ROOT / "README.md", *found]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    before, not_run, tolerance, end = "", "", None, 0
    for match in _TOKEN.finditer(text):
        if match["mark"] is None:
            kind, words = match[1], match[2].strip()
            if kind == "before":
                before = words
            elif kind == "not run":
                not_run = words
            else:
                tolerance = float(words)
            continue
        between = _COMMENT.sub("", text[end : match.start()])
        line = text.count("\n", 0, match.start("text")) + 1
        language = match["language"].strip()
        follows = bool(found) and not between.strip()
        found.append(Block(language, match["text"], line, before, not_run, tolerance, follows))
        before, not_run, tolerance, end = "", "", None, match.end()
    return found
