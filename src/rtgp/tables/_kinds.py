"""What a column is, found from its cells: a number, a date, a category, or nothing to learn from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rtgp.datasets._dataset import Array
from rtgp.tables._columns import SEASONS, Category, Column, Date, Number
from rtgp.tables._dates import ISO, find_format, looks_like_date, parse

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class KindSettings:
    """Where one kind of column ends and another begins. Chosen, not fitted.

    most_levels: words of a category that have a column each; rarer ones share one.
    least_common: part of the rows that the commonest words must cover for that.
    distinct: part of the rows with a word of their own from which a column is a key or free text.
    cycles: whole periods that dates must cover for a season to be learned.
    resolved: dates in a period, in the middle of their gaps, for it to be seen.
    """

    most_levels: int = 50
    least_common: float = 0.5
    distinct: float = 0.5
    cycles: float = 1.5
    resolved: float = 4.0


DEFAULT = KindSettings()


@dataclass(frozen=True)
class Found:
    """What was found: a column with what to say of it, why it is left out, or what is wrong with it."""

    column: Column | None = None
    notes: tuple[str, ...] = ()
    left_out: str = ""
    bad: str = ""


_ID = re.compile(
    r"(?i:id|ids|index|idx|key|uid|uuid|guid|nr|no|number|row|row[ _.-]?(id|no|nr|num|number|index)|unnamed: ?\d+"
    r"|.*[ _.-](id|key|uid|uuid|guid|index))|.*[a-z](ID|Id)"
)


@dataclass(frozen=True)
class Asked:
    """What is known of a column beforehand.

    category: it is one, whatever it holds. kept: asked for by name, so that a key is no reason to leave it out.
    blank: the file does not name this column, but others. date_format: how a date is written.
    """

    category: bool = False
    kept: bool = False
    blank: bool = False
    date_format: str | None = None


def find_kind(name: str, cells: pd.Series, asked: Asked, settings: KindSettings = DEFAULT) -> Found:
    """What a column is, what to say of it, why it is left out, or what is wrong with it."""
    import pandas as pd

    present = cells[cells.notna()]
    if len(present) == 0:
        return Found(left_out="is empty")
    if asked.category:
        return _category(name, cells, present, True, settings)
    if pd.api.types.is_datetime64_any_dtype(cells):
        return _date(name, cells, present, ISO, settings)
    if cells.dtype.kind in "biuf":
        return _number(name, cells, present, asked)
    if cells.dtype.kind != "O" and not isinstance(cells.dtype, pd.CategoricalDtype | pd.StringDtype):
        return Found(bad=f"holds neither numbers nor words ({cells.dtype})")
    present = present.astype(object)
    words = np.array([isinstance(cell, str) for cell in present])
    plain = np.array([isinstance(cell, bool | int | float | np.number | np.bool_) for cell in present])
    if plain.all():
        return _number(name, cells.astype(np.float64), present.astype(np.float64), asked)
    if not (words | plain).all():
        other = present[~(words | plain)]
        if all(hasattr(cell, "isoformat") for cell in other) and len(other) == len(present):
            return find_kind(name, pd.to_datetime(cells), asked, settings)
        return Found(bad=f"holds {type(other.iloc[0]).__name__} objects, first in row {other.index[0] + 1}")
    if not words.all():
        row = present.index[np.argmax(words)]
        return Found(bad=f"holds numbers, but row {row + 1} holds {present[row]!r:.60}")
    distinct = pd.unique(present)
    if 2 * sum(map(looks_like_date, distinct)) > len(distinct):
        format, other = (asked.date_format, "") if asked.date_format else find_format(distinct)
        return _date(name, cells, present, format, settings, other)
    return _category(name, cells, present, asked.kept, settings)


def days_since(cells: pd.Series, column: Date) -> Array:
    """Points in time as days; NaN where a cell is missing or no date of the column's format."""
    import pandas as pd

    passed = parse(cells, column.format) - pd.Timestamp(column.origin)
    days: Array = (passed / pd.Timedelta(days=1)).to_numpy(np.float64, na_value=np.nan)
    return days


def word_of(cell: Any) -> str:
    """A cell as a level of a category: 3.0 is the level that was read as "3" elsewhere."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        cell = int(cell)
    return str(cell).strip()


def _number(name: str, cells: pd.Series, present: pd.Series, asked: Asked) -> Found:
    from sklearn.impute import SimpleImputer

    values = present.to_numpy(np.float64)
    if not np.isfinite(values).all():
        row = present.index[np.argmin(np.isfinite(values))]
        return Found(bad=f"is {present[row]} in row {row + 1}")
    whole = len(values) > 1 and (values == np.round(values)).all() and len(np.unique(values)) == len(values)
    counts, grows = whole and (np.diff(values) == 1).all(), whole and (np.diff(values) > 0).all()
    if not asked.kept and ((whole and _ID.fullmatch(name.strip())) or (grows and asked.blank)):
        return Found(left_out="looks like an index: it counts the rows" if grows and asked.blank else
                     "looks like an id: a whole number of its own in each row")  # fmt: skip
    median = SimpleImputer(strategy="median").fit(values[:, None]).statistics_[0]
    gaps = len(cells) - len(present)
    notes = []
    if gaps:
        notes.append(f"{name!r}: {_rows(gaps)} without a value get the median, {median:.6g}; one more input marks them")
    if counts and not asked.kept and values[0] in (0, 1):
        notes.append(f"{name!r} counts the rows: leave it out (--drop) if that is all it does")
    return Found(Number(name, float(median), gaps > 0), tuple(notes))


def _date(
    name: str, cells: pd.Series, present: pd.Series, format: str, settings: KindSettings, other: str = ""
) -> Found:
    times = parse(present, format)
    if times.isna().any():
        row, good = times.index[times.isna()][0], times.index[times.notna()]
        like = f"as {present[good[0]]!r:.40} in row {good[0] + 1}" if len(good) else "of any known form"
        return Found(bad=f"holds dates {like}, but row {row + 1} holds {present[row]!r:.40}")
    origin = times.min()
    gaps = len(cells) - len(present)
    column = Date(name, format, origin.isoformat(), (), 0.0, gaps > 0)
    days = np.unique(days_since(present, column))
    span, gap = days[-1] - days[0], float(np.median(np.diff(days))) if len(days) > 1 else 0.0
    seen = [s for s, p in SEASONS.items() if span >= settings.cycles * p and gap * settings.resolved <= p]
    if "day" in seen and not (days % 1.0).any():
        seen.remove("day")
    fill = float(np.median(days_since(present, column)))
    circles = f", and where in the {' and in the '.join(seen)} they fall" if seen else ""
    notes = [f"{name!r}: dates become days since {origin:%Y-%m-%d}{circles}"]
    if other:
        notes.append(f"{name!r}: whether {present.iloc[0]!r} has the day or the month first cannot be told: read as "
                     f"{format}. Otherwise say --date-format '{other}'")  # fmt: skip
    if gaps:
        notes.append(f"{name!r}: {_rows(gaps)} without a date get the one in the middle; one more input marks them")
    return Found(Date(name, format, origin.isoformat(), tuple(seen), fill, gaps > 0), tuple(notes))


def _category(name: str, cells: pd.Series, present: pd.Series, kept: bool, settings: KindSettings) -> Found:
    counts = present.map(word_of).value_counts()
    counts = counts.sort_index().sort_values(ascending=False, kind="stable")
    rows = len(present)
    if len(counts) == 1:
        return Found(left_out=f"is {counts.index[0]!r:.40} in every row")
    if len(counts) > settings.most_levels:
        common = int(counts.iloc[: settings.most_levels - 1].sum())
        why = f"has {len(counts):,} different words in {rows:,} rows"
        if len(counts) > settings.distinct * rows:
            why += ", as a key or free text has"
        elif common < settings.least_common * rows:
            why += f": the {settings.most_levels - 1} commonest are in {common / rows:.0%} of them only"
        else:
            why = ""
        if why:
            return Found(bad=f"{why}: group them first") if kept else Found(left_out=why)
    elif len(counts) > settings.distinct * rows and not kept:
        return Found(left_out=f"has {len(counts):,} different words in {rows:,} rows, as a key or free text has")
    other = len(counts) > settings.most_levels
    levels = tuple(sorted(counts.index[: settings.most_levels - 1] if other else counts.index))
    gaps = len(cells) - rows
    note = f"{name!r}: {len(counts):,} categories become {len(levels) + other + (gaps > 0)} inputs of 0 and 1"
    note += f", the rarest {len(counts) - len(levels):,} together" if other else ""
    note += ", one of them for missing" if gaps else ""
    return Found(Category(name, levels, other, gaps > 0), (note,))


def _rows(count: int) -> str:
    return f"{count:,} row{'s' if count != 1 else ''}"
