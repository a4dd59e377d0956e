"""Numbers as people write them."""

from __future__ import annotations

import pytest

from rtgp.tables._dialect import find_decimal, find_separator
from rtgp.tables._numbers import evidence, number_of


@pytest.mark.parametrize(
    "cell, point, comma, says",
    [
        ("12", 12.0, 12.0, ""),
        ("-3.5", -3.5, None, "point"),
        ("1,5", None, 1.5, "comma"),
        ("1,234.5", 1234.5, None, "point"),
        ("1.234,5", None, 1234.5, "comma"),
        ("1,234", 1234.0, 1.234, "either"),
        ("1.234", 1.234, 1234.0, "either"),
        ("1,234,567", 1234567.0, None, "point"),
        ("1.234.567", None, 1234567.0, "comma"),
        ("0,250", None, 0.25, "comma"),
        ("€ 1\u00a0234,50", None, 1234.5, "comma"),
        ("$1,200.00", 1200.0, None, "point"),
        ("12%", 12.0, 12.0, ""),
        ("1e-3", 1e-3, 1e-3, ""),
        ("\u22122", -2.0, -2.0, ""),
        ("1'234'567", 1234567.0, 1234567.0, ""),
        ("1,23,4", None, None, ""),
        ("12 34", None, None, ""),
        ("3+", None, None, ""),
        ("1.2.3", None, None, ""),
        ("", None, None, ""),
        ("red", None, None, ""),
    ],
)
def test_a_cell(cell: str, point: float | None, comma: float | None, says: str) -> None:
    assert (number_of(cell, "."), number_of(cell, ","), evidence(cell)) == (point, comma, says)


@pytest.mark.parametrize(
    "lines, separator",
    [
        (["a,b,c\n", "1,2,3\n"], ","),
        (["a;b\n", "1,5;2,5\n", "3,5;4,5\n"], ";"),
        (["1,5;2,5;3\n", "1,5;2,5;3\n"], ";"),
        (["a\tb\n", "1,2\t3\n"], "\t"),
        (["a|b\n", "x;y|3\n"], "|"),
        (["a,b\n", '"x;y",1\n', '"z",2\n'], ","),
        (["a;b,c\n", "1,2\n", "3,4\n"], ","),
        (["a,b,c\n", "1,2,3\n", "1,2\n"], ","),
        (["only\n", "1\n"], ","),
        ([], ","),
    ],
)
def test_what_is_between_cells(lines: list[str], separator: str) -> None:
    assert find_separator(lines) == separator


@pytest.mark.parametrize(
    "cells, separator, decimal, doubtful",
    [
        (["1.5", "2.25"], ",", ".", False),
        (["1,5", "2"], ";", ",", False),
        (["1.234", "2.345"], ",", ".", False),
        (["1,234", "12,345"], ",", ".", True),
        (["1,234", "12,345"], ";", ",", True),
        (["1.234", "2.345"], ";", ".", True),
        (["1.234", "1.234.567"], ";", ",", False),
        (["1,234", "1.5"], ",", ".", False),
        (["a", "2020-01-01"], ",", ".", False),
    ],
)
def test_what_is_before_a_fraction(cells: list[str], separator: str, decimal: str, doubtful: bool) -> None:
    found, doubt = find_decimal(cells, separator)
    assert (found, bool(doubt)) == (decimal, doubtful)
    assert not doubt or "--decimal" in doubt
