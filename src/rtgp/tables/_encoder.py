"""`TableEncoder`: a table of any content in, a table of numbers out, and a description from which it is made again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from rtgp.datasets._dataset import Array
from rtgp.errors import InputError, SettingError
from rtgp.tables._columns import MISSING_CELL, OTHER_CELL, SEASONS, Category, Column, Date, describe, make
from rtgp.tables._kinds import Asked, Found, days_since, find_kind, word_of

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
GAPS = ("error", "impute")


class TableEncoder(TransformerMixin, BaseEstimator):
    """Numbers for a Gaussian process from a data frame with words, dates, gaps and keys.

    Categories become one input of 0 and 1 for each level; dates become days, with the seasons that they cover; gaps get
    the median and one more input that marks them; keys and free text are left out. `notes_` says each in words.

    Parameters
    ----------
    inputs : sequence of str, optional
        The columns to use, whatever they look like. By default all that there is something to learn from.
    drop : sequence of str
        Columns to leave out.
    categories : sequence of str
        Columns to take for categories although they hold numbers, such as codes.
    date_format : str, optional
        How dates are written, as in `datetime.strptime`. Found out by default, for each column.

    Attributes
    ----------
    columns_ : tuple
        What each column is.
    left_out_ : dict
        Column -> why it is not used.
    notes_ : tuple of str
        What is made of the columns, a sentence each.
    transformer_ : sklearn.compose.ColumnTransformer
        What fills gaps and encodes categories.

    Examples
    --------
    >>> import pandas as pd
    >>> from rtgp.tables import TableEncoder
    >>> frame = pd.DataFrame({"area": [50.0, None, 70.0, 60.0], "garden": ["yes", "no", "no", "yes"]})
    >>> encoder = TableEncoder().fit(frame)
    >>> list(encoder.get_feature_names_out())
    ['area', 'area missing', 'garden=no', 'garden=yes']
    >>> encoder.transform(frame).iloc[1].tolist()
    [60.0, 1.0, 1.0, 0.0]
    >>> TableEncoder.from_description(encoder.describe()).columns_ == encoder.columns_
    True
    """

    def __init__(
        self,
        inputs: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        categories: Sequence[str] = (),
        date_format: str | None = None,
    ) -> None:
        self.inputs = inputs
        self.drop = drop
        self.categories = categories
        self.date_format = date_format

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find out what the columns of a data frame are.

        Parameters
        ----------
        X : pandas.DataFrame
            The inputs, without the target.
        y : object
            Ignored.

        Returns
        -------
        TableEncoder
            Itself.
        """
        frame = _frame(X)
        names = self._chosen(frame)
        blank = {name for i, name in enumerate(frame.columns, 1) if name in (f"column {i}", f"Unnamed: {i - 1}")}
        blank = set() if len(blank) == frame.shape[1] else blank
        found = {name: self._find(name, frame[name], name in blank) for name in names}
        bad = [f"column {name!r} {one.bad}" for name, one in found.items() if one.bad]
        if bad:
            raise InputError(f"{'; '.join(bad)}. {_remedy(len(bad))}")
        self.left_out_ = {name: one.left_out for name, one in found.items() if one.left_out}
        columns = tuple(one.column for one in found.values() if one.column is not None)
        if not columns:
            why = "; ".join(f"{name!r} {words}" for name, words in self.left_out_.items()) or "there is no other column"
            raise InputError(f"Expected at least one input column to learn from. Got none: {why}.")
        self.notes_ = tuple(note for one in found.values() for note in one.notes)
        self._take(columns)
        return self

    def transform(self, X: Any, gaps: str = "error", first: int = 1) -> pd.DataFrame:
        """The numbers, with the names of `get_feature_names_out`.

        Parameters
        ----------
        X : pandas.DataFrame
            A table that has at least the columns that are used; others are ignored.
        gaps : "error" or "impute"
            What to do with a gap in a column that had none when it was learned: refuse it, or fill it.
        first : int
            The number of the first row, for errors.

        Returns
        -------
        pandas.DataFrame
        """
        check_is_fitted(self)
        frame = _frame(X)
        if gaps not in GAPS:
            raise SettingError(f"The 'gaps' of TableEncoder must be 'error' or 'impute'. Got {gaps!r}.")
        missing = [column.name for column in self.columns_ if column.name not in frame.columns]
        if missing:
            raise InputError(f"no column {_listed(missing)}, which is needed. The table has {_listed(frame.columns)}.")
        cells, bad = {}, []
        for column in self.columns_:
            cells[column.name], fault = _cells(frame[column.name], column, gaps == "impute", first)
            if fault:
                bad.append(fault)
        if bad:
            raise InputError(f"{'; '.join(bad)}.")
        return self._numbers(cells, frame.index)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """The names of the numeric columns.

        Parameters
        ----------
        input_features : object
            Ignored.

        Returns
        -------
        numpy.ndarray
            Of strings.
        """
        check_is_fitted(self)
        return np.array(self._names, dtype=object)

    def unknown(self, X: Any) -> dict[str, list[str]]:
        """Words that a category did not have when it was learned, and that have no input of their own.

        Parameters
        ----------
        X : pandas.DataFrame
            A table that has at least the columns that are used.

        Returns
        -------
        dict of str to list of str
            Words by column.
        """
        found = {}
        for column in self.columns_:
            if isinstance(column, Category):
                cells = X[column.name]
                words = {word_of(cell) for cell in cells[cells.notna()].unique()}
                if new := sorted(words - set(column.levels)):
                    found[column.name] = new
        return {} if not found else {name: new for name, new in found.items() if not self._has_other(name)}

    def describe(self) -> dict[str, Any]:
        """All that was learned as plain data, for a file.

        Returns
        -------
        dict
            What JSON can hold.
        """
        check_is_fitted(self)
        return {
            "version": VERSION,
            "columns": [describe(column) for column in self.columns_],
            "left_out": dict(self.left_out_),
            "notes": list(self.notes_),
        }

    @classmethod
    def from_description(cls, facts: Any) -> Self:
        """The encoder that `describe` has described.

        Parameters
        ----------
        facts : dict
            What `describe` has returned.

        Returns
        -------
        TableEncoder
            Another of the same.
        """
        if not isinstance(facts, dict) or facts.get("version") != VERSION or not isinstance(facts.get("columns"), list):
            raise InputError("a description of the table of another version, or none.")
        encoder = cls()
        encoder.left_out_ = {str(key): str(value) for key, value in dict(facts.get("left_out", {})).items()}
        encoder.notes_ = tuple(map(str, facts.get("notes", ())))
        encoder._take(tuple(make(one) for one in facts["columns"]))
        return encoder

    @property
    def names_in_(self) -> tuple[str, ...]:
        """The columns that are used."""
        return tuple(column.name for column in self.columns_)

    def _find(self, name: str, cells: pd.Series, blank: bool) -> Found:
        category = name in self.categories
        asked = Asked(category, category or name in (self.inputs or ()), blank, self.date_format)
        return find_kind(name, cells.reset_index(drop=True), asked)

    def _chosen(self, frame: pd.DataFrame) -> list[str]:
        asked = [*(self.inputs or ()), *self.drop, *self.categories]
        unknown = [name for name in asked if name not in frame.columns]
        if unknown:
            raise InputError(f"no column {_listed(unknown)}. The table has {_listed(frame.columns)}.")
        both = [name for name in self.inputs or () if name in self.drop]
        if both:
            raise InputError(f"{_listed(both)} cannot be both used and left out.")
        return [name for name in self.inputs or frame.columns if name not in self.drop]

    def _take(self, columns: tuple[Column, ...]) -> None:
        """Make scikit-learn's transformers from what was learned; they learn nothing of their own."""
        import pandas as pd
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import OneHotEncoder

        steps: list[tuple[str, Any, list[str]]] = []
        example: dict[str, list[Any]] = {}
        for i, column in enumerate(columns):
            if isinstance(column, Category):
                levels = [np.array(column.cells, dtype=object)]
                step = OneHotEncoder(categories=levels, handle_unknown="ignore", sparse_output=False)
                example[column.name] = [column.cells[0]]
            else:
                step = SimpleImputer(
                    strategy="constant", fill_value=column.fill, add_indicator=column.gaps, keep_empty_features=True
                )
                example[column.name] = [np.nan if column.gaps else column.fill]
            steps.append((f"{i}", step, [column.name]))
        self.columns_ = columns
        self.transformer_ = ColumnTransformer(steps, sparse_threshold=0.0).fit(_as_frame(example, columns, pd))
        self._names: list[str] = []
        for column in columns:
            for name in column.outputs:
                while name in self._names:
                    name += "'"
                self._names.append(name)

    def _numbers(self, cells: dict[str, Any], index: Any) -> pd.DataFrame:
        import pandas as pd

        found: Array = np.asarray(self.transformer_.transform(_as_frame(cells, self.columns_, pd)), dtype=np.float64)
        parts, begin = [], 0
        for column in self.columns_:
            width = len(column.outputs) - 2 * len(column.seasons) if isinstance(column, Date) else len(column.outputs)
            parts.append(found[:, begin : begin + width])
            if isinstance(column, Date):
                parts += [_circle(column, found[:, begin], season) for season in column.seasons]
            begin += width
        return pd.DataFrame(np.concatenate(parts, axis=1), columns=self._names, index=index)

    def _has_other(self, name: str) -> bool:
        return any(isinstance(one, Category) and one.name == name and one.other for one in self.columns_)


def _circle(column: Date, days: Array, season: str) -> Array:
    import pandas as pd

    # From a fixed point of the calendar, so that midnight, Monday and New Year are at the same place for every table.
    since = (pd.Timestamp(column.origin) - pd.Timestamp(2001, 1, 1)) / pd.Timedelta(days=1)
    angle = 2.0 * np.pi * (days + since) / SEASONS[season]
    return np.column_stack([np.sin(angle), np.cos(angle)])


def _cells(cells: pd.Series, column: Column, impute: bool, first: int) -> tuple[Any, str]:
    """What the transformers take, and what is wrong with the column or ""."""
    import pandas as pd

    cells = cells.reset_index(drop=True)
    missing = cells.isna().to_numpy()
    if missing.any() and not column.gaps and not impute:
        return None, f"row {int(np.argmax(missing)) + first}, column {column.name!r} is missing (NaN){_NO_GAPS}"
    if isinstance(column, Category):
        known = set(column.levels)
        words = [MISSING_CELL if gone else word_of(cell) for cell, gone in zip(cells, missing, strict=True)]
        if column.other:
            words = [word if word in known or word == MISSING_CELL else OTHER_CELL for word in words]
        return np.array(words, dtype=object), ""
    if isinstance(column, Date):
        values, what = days_since(cells, column), f"a date as {column.format}"
    else:
        values, what = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan), "a finite number"
    wrong = ~missing & ~np.isfinite(values)
    if wrong.any():
        row = int(np.argmax(wrong))
        return None, f"row {row + first}, column {column.name!r} holds {cells.iloc[row]!r:.60}; expected {what}"
    return values, ""


_NO_GAPS = (
    "; the rows that were learned from had no gaps there: fill it in, leave the row out, or say --gaps impute "
    "(gaps='impute' in Python)"
)


def _as_frame(cells: dict[str, Any], columns: Iterable[Column], pd: Any) -> pd.DataFrame:
    kinds = {column.name: object if isinstance(column, Category) else np.float64 for column in columns}
    return pd.DataFrame({name: pd.Series(values, dtype=kinds[name]) for name, values in cells.items()})


def _frame(X: Any) -> pd.DataFrame:
    import pandas as pd

    if not isinstance(X, pd.DataFrame):
        raise InputError(f"Expected a pandas.DataFrame with named columns. Got {type(X).__name__}.")
    return X if all(isinstance(name, str) for name in X.columns) else X.rename(columns=str)


def _remedy(count: int) -> str:
    it = "it" if count == 1 else "them"
    return f"Mend {it}, leave {it} out (--drop), or take words among numbers for categories (--categories)."


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
