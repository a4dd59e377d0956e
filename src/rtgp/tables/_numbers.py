"""Numbers as people write them: decimal commas, separators of thousands, signs of money and of per cent."""

from __future__ import annotations

import re

_UNIT = r"[€$£¥%]?\s*"
_BLANKS = " '’\u00a0\u2009\u202f"


def _pattern(decimal: str, group: str) -> re.Pattern[str]:
    whole = rf"(?:[1-9]\d{{0,2}}(?P<group>[{group}{_BLANKS}])\d{{3}}(?:(?P=group)\d{{3}})*|\d+)"
    dot = re.escape(decimal)
    number = rf"(?P<number>[+-]?\s*(?:{whole}(?:{dot}\d*)?|{dot}\d+)(?:[eE][+-]?\d+)?)"
    return re.compile(rf"\s*{_UNIT}{number}\s*{_UNIT}")


_PATTERNS = {".": _pattern(".", ","), ",": _pattern(",", ".")}
# One sign between digits, which decides nothing where three digits follow it and at most three stand before.
_SURE = re.compile(r"[+-]?(?:\d*(?P<sign>[.,])\d+)")
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?P<group>[.,])\d{3}(?:(?P=group)\d{3})*(?P<rest>[.,]\d*)?")


def number_of(cell: str, decimal: str = ".") -> float | None:
    """The number that a cell holds; None where it holds anything else."""
    found = _PATTERNS[decimal].fullmatch(cell.replace("\u2212", "-"))
    if found is None:
        return None
    text = found["number"]
    for sign in (*_BLANKS, "," if decimal == "." else "."):
        text = text.replace(sign, "")
    return float(text.replace(decimal, "."))


def evidence(cell: str) -> str:
    """What a cell says of the sign before a fraction: "point", "comma", "either", or nothing."""
    cell = re.sub(r"[\s€$£¥%]", "", cell)
    grouped = _GROUPED.fullmatch(cell)
    if grouped is not None:
        group, rest = grouped["group"], grouped["rest"]
        if rest and rest[0] != group:
            return "point" if rest[0] == "." else "comma"
        if cell.count(group) > 1:  # thousands and millions
            return "point" if group == "," else "comma"
        return "" if rest else "either"
    found = _SURE.fullmatch(cell)
    return "" if found is None else ("point" if found["sign"] == "." else "comma")
