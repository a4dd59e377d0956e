"""Dates as people write them: one format for a column, found from all of its cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

ISO = "ISO8601"
_DAYS = (
    "%Y/%m/%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%y", "%m/%d/%y",
    "%d/%m/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y", "%b %Y", "%B %Y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_LOOKS = re.compile(
    r"\s*(\d{4}-\d{1,2}(-\d{1,2})?|\d{4}[/.]\d{1,2}[/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})"
    r"|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}|[A-Za-z]{3,9} (\d{1,2}, )?\d{4})"
    r"([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[APap][Mm])?)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?\s*"
)
_DAY_FIRST = {"%m/%d/%Y": "%d/%m/%Y", "%m/%d/%y": "%d/%m/%y", "%m-%d-%Y": "%d-%m-%Y"}  # which is meant?


def looks_like_date(cell: object) -> bool:
    """By its form alone."""
    return isinstance(cell, str) and _LOOKS.fullmatch(cell) is not None


def parse(cells: pd.Series, format: str) -> pd.Series:
    """Points in time, without a zone; NaT where a cell is missing or of another format."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(cells):
        found = cells
    else:
        found = pd.to_datetime(cells.astype(object), format=format, errors="coerce", utc=True)
    return found.dt.tz_convert("UTC").dt.tz_localize(None) if found.dt.tz is not None else found


def find_format(cells: Sequence[str]) -> tuple[str, str]:
    """(the format of most of the cells, another that fits as well or "").

    Where the day cannot be told from the month, dots stand for the day first and slashes for the month first.
    """
    import pandas as pd

    texts = pd.Series(list(cells), dtype=object)
    best, most = ISO, int(parse(texts, ISO).notna().sum())
    if most == len(texts):
        return ISO, ""
    fitting: list[str] = []
    for day in _DAYS:
        for time in _TIMES:
            count = int(parse(texts, day + time).notna().sum())
            if count > most:
                best, most = day + time, count
            if count == len(texts):
                fitting.append(day + time)
    other = next((f for f in fitting if f != best and any(d in best and e in f for d, e in _DAY_FIRST.items())), "")
    return best, other
