"""The extensions of the documentation: what they make of formulas, rows and the library itself."""

from __future__ import annotations

import csv
from pathlib import Path

import api_pages
import benchmark_tables
import commands
import mathml
import public_names
import pytest
import typer.main
from layers import layers

import rtgp
from rtgp._cli import app


def test_every_public_name_has_an_entry() -> None:
    found = public_names.public_names()
    values = {id(one.value) for names in found.values() for one in names}
    for name in rtgp.__all__:
        value = getattr(rtgp, name)
        assert id(value) in values or value.__name__ in public_names.MODULES, name
    page = api_pages.module_page("rtgp", found["rtgp"])
    assert ".. autoclass:: rtgp.GPRegressor" in page
    assert ".. autofunction:: rtgp.fit" in page
    assert ".. autoexception:: rtgp.errors.InputError" in api_pages.module_page("rtgp.errors", found["rtgp.errors"])


def test_every_command_and_option_has_an_entry() -> None:
    page = commands.commands_page()
    for name, command in typer.main.get_command(app).commands.items():
        assert f"\nrtgp {name}\n---" in page
        for parameter in command.params:
            assert max(parameter.opts, key=len) in page or parameter.name.upper() in page, (name, parameter.name)


@pytest.mark.parametrize(
    ("tex", "written_out"),
    [
        (r"\frac12x", r"\frac{1}{2}x"),
        (r"\tfrac n\lambda g", r"\tfrac{n}{\lambda} g"),
        (r"\frac1{S_{j+1}}", r"\frac{1}{S_{j+1}}"),
        (r"\frac{\frac12}{\{a\}}", r"\frac{\frac{1}{2}}{\{a\}}"),
        (r"\Big(x\Big) \dots", r"\Bigl(x\Bigr) \ldots"),
        (r"\fraction 12", r"\fraction 12"),
        (r"\tilde K_J^{-1}", r"{\tilde{K}{}}_J^{-1}"),
        (r"\frac{\hat x}2", r"\frac{{\hat{x}{}}}{2}"),
    ],
)
def test_formulas_written_out(tex: str, written_out: str) -> None:
    assert mathml.write_out(tex) == written_out


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a", "1", "x"), ("a", "2", "x"), ("b", "3", "x"), ("b", "4", "y")]
    with (tmp_path / "some.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("set", "seconds", "kind"), *rows])
    monkeypatch.setattr(benchmark_tables, "RESULTS", tmp_path)


@pytest.mark.usefixtures("results")
def test_rows_of_a_benchmark() -> None:
    def seconds(where: dict[str, str], latest: list[str]) -> list[str]:
        return [row["seconds"] for row in benchmark_tables.read_rows("some", where, latest)]

    assert seconds({}, []) == ["1", "2", "3", "4"]
    assert seconds({"set": "a | c*", "kind": "*"}, []) == ["1", "2"]
    assert seconds({}, ["set"]) == ["2", "4"]
    assert seconds({"kind": "x"}, ["set"]) == ["2", "3"]
    with pytest.raises(ValueError, match="no column colour"):
        seconds({"colour": "red"}, [])


def test_numbers_and_options() -> None:
    assert [benchmark_tables.number(one) for one in ("10623", "1024", "0.5", "5e-05", "nan")] == [
        "10,623", "1024", "0.5", "0.00005", "never",
    ]  # fmt: skip
    assert benchmark_tables.pairs("a = x | y; failure =", ";") == {"a": "x | y", "failure": ""}
    assert sorted(["10", "9", "auto", "0.5"], key=benchmark_tables.value_of) == ["0.5", "9", "10", "auto"]


def test_layers() -> None:
    found = dict(layers())
    assert list(found)[-1] == "errors"
    assert found["truncation"].startswith("Random truncation of a series")
    assert all(found.values())
