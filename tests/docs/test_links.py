"""Links within README and docs lead to a file and a heading that are there; those elsewhere are well formed."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path
from urllib.parse import urlparse

import pytest

from docs.pages import DOCS, ROOT, name_of, pages

_LINK = re.compile(r"(?<!\\)\]\((?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)*)(?:\s+\"[^\"]*\")?\)")
_HTML = re.compile(r"(?:src|srcset|href)=\"(?P<target>[^\"]+)\"")
_CODE = re.compile(r"^(```+).*?^\1[ \t]*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_TREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
# Made by `make docs` from the source.
GENERATED = {"docs/api/index.rst", "docs/api/commands.rst"}


def targets(text: str) -> list[str]:
    text = _CODE.sub("", text)
    return [match["target"] for pattern in (_LINK, _HTML) for match in pattern.finditer(text)]


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub and MyST make them."""
    headings = _HEADING.findall(re.sub(r"^(```+).*?^\1[ \t]*$", "", text, flags=re.DOTALL | re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in targets(text):
        parts = urlparse(target)
        if parts.scheme or parts.netloc:
            assert parts.scheme == "https", target
            assert re.fullmatch(r"([\w-]+\.)+[a-z]{2,}", parts.netloc), target
            continue
        file = Path(os.path.normpath(page.parent / parts.path)) if parts.path else page
        name = file.relative_to(ROOT).as_posix()
        assert file.exists() or name in GENERATED, f"{name_of(page)} links to {target}: no such file"
        if parts.fragment and file.suffix == ".md":
            assert parts.fragment in anchors(file.read_text(encoding="utf-8")), f"{name_of(page)}: {target}"


def test_the_patterns_see_links() -> None:
    assert targets('[a](b.md#c) `[no](no.md)` ![x](y.png) <img src="z.svg"> [d](https://e.org/f_(g))') == [
        "b.md#c", "y.png", "https://e.org/f_(g)", "z.svg",
    ]  # fmt: skip
    assert anchors("# Fig. 4 and S2\n## `rtgp fit`: cost\n") == {"fig-4-and-s2", "rtgp-fit-cost"}


def is_entry(page: Path, entry: Path) -> bool:
    """Whether a line of a tree of contents, which may be a pattern, means this page."""
    return page.parent == entry.parent and fnmatch.fnmatchcase(page.stem, entry.name)


def test_every_page_is_in_the_tree_of_contents() -> None:
    entries = []
    for page in DOCS.rglob("*.md"):
        for block in _TREE.findall(page.read_text(encoding="utf-8")):
            lines = (line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":"))
            entries += [Path(os.path.normpath(page.parent / line)) for line in lines]
    listed = [page for page in pages() if any(is_entry(page, entry) for entry in entries)]
    assert [name_of(page) for page in pages() if page not in listed] == ["README.md", "docs/index.md"]
