"""docs/walk.md draws who calls whom. Its own program runs here under a profiler: every line drawn must have happened.

That is: the function is called, by the line it hangs from (directly, or through others left out), after the line above.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rtgp
from docs.pages import DOCS, blocks

SOURCE = Path(rtgp.__file__).parent
PAGE = DOCS / "walk.md"
_LINE = re.compile(r"^(?P<lines>[│├└─ ]*)(?P<name>[\w/]+\.py:[\w.]+)(?: {2,}\S.*)?$")
_FILE = re.compile(r"`(?:src/rtgp/)?((?:\w+/)*\w+\.py)(?::([\w.]+))?`")
WIDTH = 3  # of one level


@dataclass
class Drawn:
    """A line of a drawing."""

    name: str
    below: list[Drawn] = field(default_factory=list)

    def __iter__(self) -> Any:
        yield self
        for one in self.below:
            yield from one


@dataclass
class Call:
    """What happened. begin, end: places in one sequence of all beginnings and ends."""

    name: str
    begin: int
    end: int = sys.maxsize


def drawing(text: str) -> list[Drawn]:
    """The trees of a block; no line may be of another kind."""
    roots: list[Drawn] = []
    open_lines: list[Drawn] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        assert match, f"not a line of a drawing: {line!r}"
        level, rest = divmod(len(match["lines"]), WIDTH)
        assert rest == 0, line
        assert level <= len(open_lines), line
        one = Drawn(match["name"])
        (open_lines[level - 1].below if level else roots).append(one)
        open_lines[level:] = [one]
    return roots


def recorded(program: Callable[[], None], source: Path = SOURCE) -> dict[str, list[Call]]:
    """All calls of functions below `source` on this thread, by name, in order."""
    calls: dict[str, list[Call]] = {}
    running: list[Call] = []
    clock = 0
    prefix = f"{source}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal clock
        file = frame.f_code.co_filename
        if not file.startswith(prefix) or event not in ("call", "return"):
            return
        clock += 1
        if event == "call":
            call = Call(f"{file.removeprefix(prefix)}:{frame.f_code.co_qualname}", clock)
            running.append(call)
            calls.setdefault(call.name, []).append(call)
        elif running:
            running.pop().end = clock

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        program()
    finally:
        sys.setprofile(before)
    return calls


def happened(line: Drawn, calls: dict[str, list[Call]], after: int = 0, before: int = sys.maxsize) -> Call | None:
    """The first call of this line in a span, with all lines below it, each within it and after the one above."""
    for call in calls.get(line.name, []):
        if call.begin <= after or call.end > before:
            continue
        place = call.begin
        for one in line.below:
            found = happened(one, calls, place, call.end)
            if found is None:
                break
            place = found.end
        else:
            return call
    return None


def what_is_wrong(line: Drawn, calls: dict[str, list[Call]]) -> str:
    """Of a drawing that has not happened, in words that lead to the line."""
    never = [one.name for one in line if one.name not in calls]
    if never:
        return f"never called: {', '.join(never)}"
    for one in line:
        for below in one.below:
            if happened(Drawn(one.name, [Drawn(below.name)]), calls) is None:
                return f"{below.name} is not called by {one.name}"
    return f"below {line.name} the order is another, or the calls are of different runs"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def trees(page: str) -> list[Drawn]:
    texts = [one.text for one in blocks(page) if one.language == "text" and ".py:" in one.text]
    return [tree for text in texts for tree in drawing(text)]


@pytest.fixture(scope="module")
def calls(page: str) -> dict[str, list[Call]]:
    program = "\n".join(one.before + "\n" + one.text for one in blocks(page) if one.language == "python")

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})

    return recorded(run)


def test_every_line_drawn_happens_as_drawn(trees: list[Drawn], calls: dict[str, list[Call]]) -> None:
    assert len(trees) >= 7
    for tree in trees:
        assert happened(tree, calls) is not None, what_is_wrong(tree, calls)


def test_every_file_named_is_there(page: str, calls: dict[str, list[Call]]) -> None:
    """In the text too; a function named with its file need not be called, but must be in it."""
    named = _FILE.findall(page)
    assert named
    for file, function in named:
        path = SOURCE / file
        assert path.is_file(), f"{file}: no such file"
        name = function.rpartition(".")[2]
        assert not name or re.search(rf"^ *(def|class) {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE), name


def test_it_goes_from_the_first_call_to_the_product_with_k(trees: list[Drawn]) -> None:
    """Each drawing but that of a prediction begins where an earlier one has a line: the chain has no gap."""
    seen = {"_estimator/regressor.py:GPRegressor.fit", "_estimator/regressor.py:GPRegressor.predict"}
    for tree in trees:
        assert tree.name in seen, tree.name
        seen |= {one.name for one in tree}
    assert "operators/_dense.py:DenseOperator.matmul" in seen


PROGRAM = """
def top(): middle(); last()
def middle(): inner()
def inner(): pass
def last(): pass
"""


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ("a.py:top\n├─ a.py:middle\n│  └─ a.py:inner\n└─ a.py:last  at the end", ""),
        ("a.py:top\n├─ a.py:inner\n└─ a.py:last", ""),  # through another
        ("a.py:top\n├─ a.py:last\n└─ a.py:middle", "the order is another"),
        ("a.py:top\n├─ a.py:middle\n└─ a.py:inner", "the order is another"),  # within the line above, not after it
        ("a.py:middle\n└─ a.py:last", "a.py:last is not called by a.py:middle"),
        ("a.py:top\n└─ a.py:renamed", "never called: a.py:renamed"),
    ],
)
def test_a_wrong_drawing_is_found(drawn: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(textwrap.dedent(PROGRAM))
    space: dict[str, Any] = {}
    exec(compile(PROGRAM, str(file), "exec"), space)
    (tree,) = drawing(drawn)
    seen = recorded(space["top"], tmp_path)
    assert (happened(tree, seen) is None) == bool(words)
    if words:
        assert words in what_is_wrong(tree, seen)


@pytest.mark.parametrize("line", ["words", "a.py", "a.py:top, called first", "├─ a.py:top"])
def test_what_is_no_drawing_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        drawing(line)
