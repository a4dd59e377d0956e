"""Every public name has a numpydoc docstring that names its arguments and results, and whose example runs."""

from __future__ import annotations

import dataclasses
import doctest
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import public_names
import pytest

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# These need a card, or processes that torchrun starts: the last line that matters is shown and not run.
NOT_RUN = {"rtgp.operators.TritonOperator", "rtgp.distributed.start"}


def documented() -> list[public_names.Name]:
    """The public functions and classes."""
    return [one for names in public_names.public_names().values() for one in names if callable(one.value)]


def ids(one: public_names.Name) -> str:
    return one.full


def sections(text: str) -> dict[str, str]:
    """What stands below each underlined title of a docstring, and under "" what stands before."""
    pieces = re.split(r"^(\w[\w ]*)\n-{3,}$", text, flags=re.MULTILINE)
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def entries(section: str) -> set[str]:
    """The names that a list of parameters explains: lines at the margin, each followed by a text."""
    found = re.findall(r"^(\S.*)\n {4}\S", section, flags=re.MULTILINE)
    return {name.strip("* ") for line in found for name in line.partition(" : ")[0].split(",")}


def is_interface(value: Any) -> bool:
    return getattr(value, "_is_protocol", False) or inspect.isabstract(value)


def arguments(value: Any) -> set[str]:
    """The arguments that a caller may give; a class without a constructor of its own has none."""
    if inspect.isclass(value):
        if value.__init__ is object.__init__ or is_interface(value) or issubclass(value, enum.Enum):
            return set()
        if dataclasses.is_dataclass(value):
            return {field.name for field in dataclasses.fields(value) if field.init and field.name[0] != "_"}
    return {name for name in inspect.signature(value).parameters if name[0] != "_" and name not in ("self", "cls")}


def gives_something(value: Any) -> bool:
    return inspect.signature(value).return_annotation not in (None, "None", "NoReturn")


def complaints(name: str, value: Any) -> Iterator[str]:
    """What the docstring of a function or a class lacks; its example is looked for by `lacks_example`."""
    text = inspect.getdoc(value) or ""
    found = sections(text)
    first = found[""].strip().split("\n\n")[0]
    if not first or first.startswith(f"{name.rpartition('.')[2]}(") or not first.endswith((".", ":")):
        yield f"{name}: no sentence at the beginning"
    told = entries(found.get("Parameters", ""))
    if inspect.isclass(value):
        told |= entries(found.get("Attributes", ""))
    if missing := arguments(value) - told:
        yield f"{name}: nothing on {', '.join(sorted(missing))}"
    if not inspect.isclass(value):
        if more := told - arguments(value):
            yield f"{name}: no such argument as {', '.join(sorted(more))}"
        if gives_something(value) and "Returns" not in found:
            yield f"{name}: nothing on what it returns"


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public functions and properties of a class that this library has written."""
    for name, value in inspect.getmembers_static(owner):
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if name[0] != "_" and inspect.isfunction(function) and function.__module__.startswith("rtgp."):
            yield name, getattr(owner, name)


def declared(module: str) -> set[str]:
    """The members that the interfaces of a module explain, so that what has them need not."""
    names = [one for one in public_names.public_names().get(module, []) if is_interface(one.value)]
    return {member for one in names for member, own in members(one.value) if inspect.getdoc(own)}


def problems(name: str, value: Any) -> list[str]:
    """What the docstrings of a function, or of a class and its members, lack."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return [] if inspect.getdoc(value) else [f"{name}: no sentence"]
    found = list(complaints(name, value))
    if ">>> " not in (inspect.getdoc(value) or ""):
        found.append(f"{name}: no example")
    if inspect.isclass(value):
        for member, own in members(value):
            if not inspect.getdoc(own) and member in declared(name.rpartition(".")[0]):
                continue
            if isinstance(own, property):
                words = inspect.getdoc(own) or ""
                found += [] if words else [f"{name}.{member}: no sentence"]
                if ":" in re.sub("`.*?`", "", words):
                    found.append(f"{name}.{member}: Sphinx takes what stands before a colon for a type")
            else:
                found += complaints(f"{name}.{member}", own)
    return found


@pytest.mark.parametrize("one", documented(), ids=ids)
def test_the_docstring_is_whole(one: public_names.Name) -> None:
    assert problems(one.full, one.value) == []


@pytest.mark.parametrize("one", documented(), ids=ids)
def test_the_example_runs(one: public_names.Name) -> None:
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    printed: list[str] = []
    run = 0
    for test in doctest.DocTestFinder(exclude_empty=True).find(one.value, one.full, globs={}):
        run += sum(doctest.SKIP not in example.options for example in test.examples)
        runner.run(test, out=printed.append)
    assert runner.failures == 0, "".join(printed)
    assert ("doctest: +SKIP" in (inspect.getdoc(one.value) or "")) == (one.full in NOT_RUN)
    assert run > 0 or (inspect.isclass(one.value) and issubclass(one.value, BaseException))


def whole(n: int, seed: int = 0) -> int:
    """A number.

    Parameters
    ----------
    n : int
        How many.
    seed : int, optional
        Of the draw.

    Returns
    -------
    int
        The number.

    Examples
    --------
    >>> 1 + 1
    2
    """
    return n + seed


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("seed : int, optional\n    Of the draw.\n", "", "nothing on seed"),
        ("seed :", "sead :", "no such argument as sead"),
        ("Returns\n-------\nint\n    The number.\n", "", "nothing on what it returns"),
        (">>> 1 + 1\n2", "", "no example"),
        ("A number.", "", "no sentence"),
        ("", "", ""),
    ],
)
def test_what_the_test_would_find(old: str, new: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = inspect.getdoc(whole) or ""
    monkeypatch.setattr(whole, "__doc__", text.replace(old, new) if old else text)
    found = " ".join(problems("whole", whole))
    assert complaint in found if complaint else found == ""
