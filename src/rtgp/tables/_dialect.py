"""How a file writes its cells: what stands between them, and what stands before a fraction."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence

from rtgp.datasets._csv_files import Dialect
from rtgp.tables._numbers import evidence

# Those that hardly stand in every line by accident come first.
SEPARATORS = ("\t", ";", "|", ",")
NAMES = {"\t": "a tab", ";": "';'", "|": "'|'", ",": "','"}
# Cells that say that there is no value, beside those that pandas knows.
MISSING = ("?", "-", "--", "–", "—", ".", "na", "Na", "n.a.", "none", "NONE", "missing", "Missing", "NaT")


class Finder:
    """Finds the dialect of a file by its first lines, and says what is worth saying.

    separator, decimal: what the user has said; None finds them out.
    """

    def __init__(self, separator: str | None, decimal: str | None) -> None:
        self.separator, self.decimal = separator, decimal
        self.notes: list[str] = []
        self.dialect = Dialect(missing=MISSING)

    def __call__(self, lines: list[str]) -> Dialect:
        separator = self.separator or find_separator(lines)
        rows = _rows(lines, separator)
        decimal = self.decimal
        if decimal is None:
            decimal, doubt = find_decimal([cell for row in rows[1:] or rows for cell in row], separator)
            self.notes += [doubt] if doubt else []
        if separator != ",":
            self.notes.append(f"The cells are separated by {NAMES.get(separator, repr(separator))}.")
        if decimal == ",":
            self.notes.append("Fractions are written with a comma.")
        self.dialect = Dialect(separator, decimal, MISSING)
        return self.dialect


def find_separator(lines: Sequence[str]) -> str:
    """That by which most lines have as many cells as the first; a comma where there is one column only."""
    best, score = ",", 0.0
    for separator in SEPARATORS:
        counts = [len(row) for row in _rows(lines, separator)]
        if counts and counts[0] > 1:
            same = sum(count == counts[0] for count in counts) / len(counts)
            if same > score:
                best, score = separator, same
    return best


def find_decimal(cells: Iterable[str], separator: str) -> tuple[str, str]:
    """(the sign before a fraction, what is in doubt or "")."""
    votes = {"point": 0, "comma": 0, "either": 0}
    example = ""
    for cell in cells:
        found = evidence(cell)
        if found:
            votes[found] += 1
            example = example or (cell.strip() if found == "either" else "")
    if votes["comma"] or votes["point"]:
        return (",", "") if votes["comma"] > votes["point"] else (".", "")
    if not votes["either"] or (separator == "," and "." in example):
        return ".", ""
    doubt = f"Whether {example!r} is a fraction or has a separator of thousands cannot be told: taken for "
    if "," in example and separator == ";":  # as spreadsheets write it where fractions have a comma
        return ",", doubt + "a fraction. If these are thousands, say --decimal . (decimal='.' in Python)."
    meant = "thousands. If it is a fraction" if "," in example else "a fraction. If these are thousands"
    return ".", f"{doubt}{meant}, say --decimal , (decimal=',' in Python)."


def _rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=separator, skipinitialspace=True) if row]
    except csv.Error:
        return []
