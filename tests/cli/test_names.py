"""Columns may be called anything: what a program or a page would read as its own language is a name all the same."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from rtgp._cli import app
from rtgp._estimator.regressor import GPRegressor
from rtgp._report.style import axes, figure, plain, to_svg

ROWS = 30
NAMES = {
    "backslash and digit": r"m\d",
    "group of a pattern": r"\1 \g<0> \g<nothing>",
    "trailing backslash": "a\\",
    "braces": "{x} {0} {}",
    "template": "{{ 7 * 7 }} {% for x in y %} {# z #}",
    "tags": "<script>alert(1)</script> </svg> <!-- -->",
    "entities": "&lt; &amp; & &#0;",
    "quotes": "\"double\" 'single' `back`",
    "attribute": 'id="x" url(#y) xlink:href="#z" #010101 width="9"',
    "formula": r"$\frac{a}{b}$ and $",
    "escaped dollar": r"\$5 \\$",
    "sub and superscript": "_a_b^c",
    "markup": "[bold]x[/bold] [/] [/nothing] [red",
    "per cent": "%s %d %(x)s 100%",
    "long": "x" * 300,
    "long words": "word and " * 34,
    "emoji": "😀 👨‍👩‍👧 ☃",
    "newline": "first\nsecond\tthird",
    "leading spaces": "   x ",
    "right to left": "\u202eשלום \u0645\u0631\u062d\u0628\u0627",
    "controls": "\x1b[31mred\x07",
    "separators": "a,b;c|d",
    "an option": "--target",
}


class _Page(HTMLParser):
    """The words of a page: its heading, and the cells beside each name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.title = ""
        self.cells: dict[str, str] = {}
        self._inside, self._row = "", ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("h1", "th", "td"):
            self._inside = tag
        if tag == "th":
            self._row = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "h1":
            self.title += data
        elif self._inside == "th":
            self._row += data
        elif self._inside == "td":
            self.cells[self._row] = self.cells.get(self._row, "") + data


def run(*args: object) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    # It trains for two steps only, and says so.
    assert "warning" not in result.output.replace("warning: Training has not converged", "")
    return result.output


def write(path: Path, names: list[str], columns: list[np.ndarray]) -> Path:
    if path.suffix == ".parquet":
        pd.DataFrame(dict(zip(names, columns, strict=True))).to_parquet(path)
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *zip(*columns, strict=True)])
    return path


def figures(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(f"<svg {part.partition('</svg>')[0]}</svg>") for part in text.split("<svg ")[1:]]


def words(drawn: list[ElementTree.Element]) -> set[str]:
    return {"".join(one.itertext()) for part in drawn for one in part.iter("{http://www.w3.org/2000/svg}text")}


def shown(name: str) -> str:
    """As a figure shows it."""
    return plain(name).replace(r"\$", "$")


QUICK = ("backslash and digit", "leading spaces")  # of the pages with maps, which take longer to draw
KINDS = list(NAMES)
CURVES = {*QUICK, *KINDS[1::3]}  # one in three runs with `make test`
CASES = [
    pytest.param(kind, 1, id=f"{kind}, curve", marks=() if kind in CURVES else pytest.mark.slow) for kind in NAMES
] + [pytest.param(kind, 2, id=f"{kind}, maps", marks=() if kind in QUICK else pytest.mark.slow) for kind in NAMES]


@pytest.mark.parametrize(("kind", "inputs"), CASES)
def test_from_a_table_to_predictions(kind: str, inputs: int, tmp_path: Path) -> None:
    name = NAMES[kind]
    given = [f"{name}{i or ''}" for i in range(inputs + 1)]
    ending = "csv" if inputs == 1 else "parquet"
    features, target = given[:-1], given[-1]
    held = [one.strip() for one in given] if ending == "csv" else given  # as ever, for CSV files
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(ROWS, inputs))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=ROWS)
    data = write(tmp_path / f"data.{ending}", given, [*X.T, y])
    model, report = tmp_path / "model", tmp_path / "report.html"

    run("fit", data, f"--target={target}", "-o", model, "--steps", 2, "--report", report)
    assert json.loads((model / "fit.json").read_text(encoding="utf-8"))["target"] == held[-1]
    text = report.read_text(encoding="utf-8")
    page = _Page(text)
    assert page.title == f"{held[-1]} of data"
    assert page.cells["target"] == held[-1]
    assert page.cells["inputs"] == ", ".join(held[:-1])
    drawn = figures(text)
    assert len(drawn) > 5
    labels = [shown(held[0]), shown(held[-1]) if inputs == 1 else shown(held[1]), shown(f"observed {held[-1]}")]
    assert set(labels) <= words(drawn)

    output = run("info", model)
    for label, names in (("target", held[-1]), ("inputs", f"{inputs}: {', '.join(held[:-1])}")):
        (line,) = [line for line in output.split("\n") if line.startswith(f"{label} ")]
        printed = "".join(character if character.isprintable() else " " for character in names)
        assert line.removeprefix(label).lstrip() == printed.lstrip()

    asked = write(tmp_path / f"new.{ending}", [*reversed(features), "other"], [*X.T[::-1], y])
    run("predict", model, asked, "--output", tmp_path / "out.csv", "--std")
    regressor = GPRegressor.load(model)
    assert list(regressor.feature_names_in_) == held[:-1]
    wanted = regressor.predict(pd.DataFrame(X, columns=held[:-1]))
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["mean"], wanted)


@pytest.mark.parametrize("kind", ["markup", "backslash and digit", "newline"])
def test_compare(kind: str, tmp_path: Path) -> None:
    name = NAMES[kind]
    rng = np.random.default_rng(0)
    X = rng.uniform(size=ROWS)
    data = write(tmp_path / "data.csv", [name, f"{name}y"], [X, np.sin(6 * X) + 0.1 * rng.normal(size=ROWS)])
    report = tmp_path / "report.html"
    output = run(
        "compare", data, f"--target={name}y", "--methods", "cholesky", "--steps", 2, "--report", report
    )  # fmt: skip
    assert f"{name}y of data".replace("\n", " ").replace("\t", " ") in output
    assert _Page(report.read_text(encoding="utf-8")).title.startswith(f"{name}y of data: ")


@pytest.mark.parametrize("kind", NAMES)
def test_a_figure_shows_a_name_as_it_is(kind: str) -> None:
    name = NAMES[kind]
    drawn = figure()
    axes(drawn, title=name, x=name, y=name)
    (parsed,) = figures(to_svg(drawn, "key", name))
    assert shown(name) in words([parsed])
    assert parsed.get("aria-label") == "".join(character if character.isprintable() else " " for character in name)
    assert parsed.get("width") is None
    assert parsed.get("height") is None
    identities = [one.get("id") for one in parsed.iter() if one.get("id")]
    assert all(one.startswith("key-") for one in identities)
    assert len(set(identities)) == len(identities)
