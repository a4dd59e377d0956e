"""What is made of the columns of a data frame, and that it is made again from its description."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from rtgp._estimator.regressor import GPRegressor
from rtgp.errors import InputError
from rtgp.tables import TableEncoder
from rtgp.tables._dates import find_format

DATES = pd.date_range("2015-01-01", periods=60, freq="30D")
FRAME = pd.DataFrame(
    {
        "size": np.where(np.arange(60) % 7, np.arange(60.0) % 11, np.nan),
        "kind": (["a", "b", "c", None, "b", "a"] * 10),
        "at": DATES,
        "flag": [True, False, True] * 20,
        "key": np.arange(60) * 3 + 7,
        "note": [f"text {i}" for i in range(60)],
        "same": "x",
        "empty": np.nan,
    }
).rename(columns={"key": "Customer ID"})


def test_each_column_is_what_scikit_learn_makes_of_it() -> None:
    encoder = TableEncoder().fit(FRAME)
    made = encoder.transform(FRAME)
    kind = OneHotEncoder(sparse_output=False).fit_transform(FRAME[["kind"]].fillna("\x00")).T
    days = ((FRAME["at"] - FRAME["at"][0]) / pd.Timedelta(days=1)).to_numpy()
    size = SimpleImputer(strategy="median", add_indicator=True).fit_transform(FRAME[["size"]]).T
    year = 2 * np.pi * (DATES - pd.Timestamp(2001, 1, 1)).days.to_numpy() / 365.2425
    wanted = {"size": size[0], "size missing": size[1], "kind=a": kind[1], "kind=b": kind[2], "kind=c": kind[3],
              "kind missing": kind[0], "at": days, "at year sin": np.sin(year), "at year cos": np.cos(year),
              "flag": FRAME["flag"].to_numpy(float)}  # fmt: skip
    assert list(made.columns) == list(wanted) == encoder.get_feature_names_out().tolist()
    for name, values in wanted.items():
        np.testing.assert_allclose(made[name], values, atol=1e-9)
    assert isinstance(encoder.transformer_, ColumnTransformer)
    assert set(encoder.left_out_) == {"Customer ID", "note", "same", "empty"}
    assert all(words for words in (*encoder.notes_, *encoder.left_out_.values()))


def test_it_is_made_again_from_plain_data() -> None:
    encoder = TableEncoder().fit(FRAME)
    again = TableEncoder.from_description(json.loads(json.dumps(encoder.describe())))
    pd.testing.assert_frame_equal(again.transform(FRAME), encoder.transform(FRAME))
    assert (again.left_out_, again.notes_) == (encoder.left_out_, encoder.notes_)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version=2),
        lambda d: d["columns"][0].update(kind="magic"),
        lambda d: d["columns"][0].update(fill="1"),
        lambda d: d["columns"][0].update(fill=float("nan")),
        lambda d: d["columns"][0].pop("gaps"),
        lambda d: d["columns"][1].update(levels=[1, 2]),
        lambda d: d["columns"][2].update(seasons=["century"]),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(change) -> None:
    facts = json.loads(json.dumps(TableEncoder().fit(FRAME).describe()))
    change(facts)
    with pytest.raises(InputError):
        TableEncoder.from_description(facts)


def test_a_row_is_encoded_by_itself() -> None:
    """So that a table can be predicted for in pieces."""
    encoder = TableEncoder().fit(FRAME)
    whole = encoder.transform(FRAME)
    pieces = [encoder.transform(FRAME.iloc[i : i + 7]) for i in range(0, 60, 7)]
    pd.testing.assert_frame_equal(pd.concat(pieces), whole)


def test_rare_words_share_an_input_and_unknown_ones_join_them() -> None:
    words = [f"w{i}" for i in range(80)] + ["common"] * 150
    encoder = TableEncoder().fit(pd.DataFrame({"word": words}))
    (column,) = encoder.columns_
    assert column.other
    assert len(column.levels) == 49
    made = encoder.transform(pd.DataFrame({"word": ["common", "never seen"]}))
    assert made.sum(axis=1).tolist() == [1.0, 1.0]
    assert made["word other"].tolist() == [0.0, 1.0]
    assert encoder.unknown(pd.DataFrame({"word": ["never seen"]})) == {}


def test_a_scikit_learn_pipeline() -> None:
    y = np.arange(60) % 11 + (FRAME["kind"] == "a") * 3.0
    model = make_pipeline(TableEncoder(drop=["at"]), GPRegressor(random_state=0))
    clone(model)
    assert model.fit(FRAME, y).score(FRAME, y) > 0.9
    assert "lengthscale[kind=a]" in model[-1].hyperparameters_


def test_what_is_asked_for_by_name() -> None:
    kept = TableEncoder(inputs=["Customer ID"]).fit(FRAME)
    assert list(kept.get_feature_names_out()) == ["Customer ID"]
    coded = TableEncoder(inputs=["size"], categories=["size"]).fit(FRAME[["size"]])
    assert "size=3" in coded.get_feature_names_out()
    with pytest.raises(InputError, match="no column 'none'"):
        TableEncoder(drop=["none"]).fit(FRAME)
    with pytest.raises(InputError, match="Got none: 'note' has 60 different words"):
        TableEncoder(inputs=None).fit(FRAME[["note"]])


def test_a_time_axis_that_counts_is_kept() -> None:
    encoder = TableEncoder().fit(pd.DataFrame({"day": range(30), "x": np.sin(np.arange(30.0))}))
    assert encoder.names_in_ == ("day", "x")
    assert any("'day' counts the rows" in note for note in encoder.notes_)


@pytest.mark.parametrize(
    "cells, format, other",
    [
        (["2020-01-31", "2021-02-03"], "ISO8601", ""),
        (["31.01.2020", "01.02.2020"], "%d.%m.%Y", ""),
        (["01/02/2020", "03/04/2020"], "%m/%d/%Y", "%d/%m/%Y"),
        (["13/02/2020", "03/04/2020"], "%d/%m/%Y", ""),
        (["2/25/20 13:05", "3/4/20 1:00"], "%m/%d/%y %H:%M", ""),
        (["Jan 2020", "Feb 2021"], "%b %Y", ""),
    ],
)
def test_dates(cells: list[str], format: str, other: str) -> None:
    assert find_format(cells) == (format, other)


def test_a_date_that_may_be_read_in_two_ways_says_so() -> None:
    frame = pd.DataFrame({"at": ["01/02/2020", "03/04/2020", "05/06/2021"]})
    encoder = TableEncoder().fit(frame)
    assert any("--date-format '%d/%m/%Y'" in note for note in encoder.notes_)
    days = TableEncoder(date_format="%d/%m/%Y").fit(frame).transform(frame)["at"]
    assert days.tolist() == [0.0, 62.0, 490.0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.text(max_size=6), st.floats(), st.integers(), st.booleans(), st.dates().map(str)),
        min_size=1, max_size=20,
    )
)  # fmt: skip
def test_any_column_is_encoded_or_refused_in_words(cells: list[object]) -> None:
    frame = pd.DataFrame({"any": pd.Series(cells, dtype=object), "x": np.linspace(0, 1, len(cells)) ** 2})
    try:
        encoder = TableEncoder().fit(frame)
    except InputError as error:
        assert "column 'any'" in str(error)  # noqa: PT017
        return
    made = encoder.transform(frame)
    assert np.isfinite(made.to_numpy()).all()
    again = TableEncoder.from_description(json.loads(json.dumps(encoder.describe())))
    pd.testing.assert_frame_equal(again.transform(frame), made)
