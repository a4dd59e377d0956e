"""Own tables: every format reads to the same numbers; bad content is named by row and column."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rtgp.datasets import read, read_table
from rtgp.errors import InputError

VALUES = np.array([[1.5, -2.0, 1e-3], [0.1, 4.0, 5e7], [7.0, 8.25, -9.0]])
NAMES = ("a", "b", "price")


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def csv_text(header: bool) -> str:
    rows = [",".join(map(repr, row)) for row in VALUES.tolist()]
    return "\n".join([",".join(NAMES), *rows] if header else rows) + "\n"


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "T.CSV", "t.txt"])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_csv(tmp_path: Path, name: str, header: bool, told: bool) -> None:
    table = read_table(write(tmp_path / name, csv_text(header)), header if told else None)
    np.testing.assert_array_equal(table.values, VALUES)
    assert table.columns == (NAMES if header else ("column 1", "column 2", "column 3"))
    assert table.name.lower() == "t"


def test_csv_numbers_are_read_to_the_last_bit(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(200, 3)) * 10.0 ** np.arange(-9, 9, 6)
    text = "\n".join(",".join(map(repr, row)) for row in values.tolist())
    np.testing.assert_array_equal(read_table(write(tmp_path / "t.csv", text)).values, values)


@pytest.mark.parametrize(
    "text",
    ["\n\na,b\n1,2\n\n3,4\n\n", "a,b\r\n1,2\r\n3,4\r\n", "\ufeffa,b\n1,2\n3,4", ' a ,"b"\n1, 2\n3,"4"\n'],
    ids=["blank lines", "windows", "byte-order mark", "spaces and quotes"],
)
def test_csv_variants(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    table = read_table(path)
    assert table.columns == ("a", "b")
    np.testing.assert_array_equal(table.values, [[1, 2], [3, 4]])


def test_a_header_of_numbers_can_be_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "2010,2011\n1,2\n")
    assert len(read_table(path).values) == 2
    assert read_table(path, header=True).columns == ("2010", "2011")


def test_parquet(tmp_path: Path) -> None:
    pd.DataFrame(VALUES, columns=list(NAMES)).assign(whole=[1, 2, 3], flag=[True, False, True]).to_parquet(
        tmp_path / "t.parquet"
    )
    table = read_table(tmp_path / "t.parquet")
    assert table.columns == (*NAMES, "whole", "flag")
    np.testing.assert_array_equal(table.values, np.column_stack([VALUES, [1, 2, 3], [1, 0, 1]]))


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=VALUES[:, :2], y=VALUES[:, 2])
    data = read(tmp_path / "t.npz")
    np.testing.assert_array_equal(data.X, VALUES[:, :2])
    np.testing.assert_array_equal(data.y, VALUES[:, 2])
    assert (data.feature_names, data.target_name) == (("x1", "x2"), "y")
    np.savez_compressed(tmp_path / "n.npz", X=VALUES, feature_names=np.array(NAMES))
    assert read_table(tmp_path / "n.npz").columns == NAMES


@pytest.mark.parametrize("target", ["b", 1, -2])
def test_the_target_is_a_name_or_a_position(tmp_path: Path, target: str | int) -> None:
    data = read(write(tmp_path / "houses.csv", csv_text(True)), target=target)
    assert (data.name, data.target_name, data.feature_names) == ("houses", "b", ("a", "price"))
    np.testing.assert_array_equal(data.y, VALUES[:, 1])
    np.testing.assert_array_equal(data.X, VALUES[:, [0, 2]])


def test_the_target_is_the_last_column_by_default(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t.csv", csv_text(True))).target_name == "price"


@pytest.mark.parametrize("target, says", [("cost", "no target column 'cost'.*'a', 'b', 'price'"), (3, "outside its 3")])
def test_refuses_a_target_that_is_not_there(tmp_path: Path, target: str | int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(write(tmp_path / "t.csv", csv_text(True)), target=target)


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("a,b\n", "no rows of data"),
        ("a,b\n1,2\n3,four\n", "row 2, column 'b' holds 'four'"),
        ("1,2\n3,four\n", "row 2, column 'column 2' holds 'four'"),
        ("1,two\n3,4\n", "row 1, column 'column 2' holds 'two'.*header=True"),
        ("a,b\n1,2\n3,\n", "row 2, column 'b' is missing"),
        ("a,b\n1,2\n3\n", "row 2, column 'b' is missing"),
        ("a,b\n1,2\nnan,4\n", "row 2, column 'a' is missing"),
        ("a,b\n1,2\n3,inf\n", "row 2, column 'b' is inf"),
        ("a,b\n1,2\n3,4,5\n", "line 3 has 3 columns where the first row of data has 2"),
        ("a,b,c\n1,2\n", "3 column names but 2 columns"),
        ("a,b\n1,2,3\n", "2 column names but 3 columns"),
        ("a,a\n1,2\n", "'a' given more than once"),
        ("a;b\n1;2\n", "row 1, column 'a;b' holds '1;2'"),
        ("a,b\n2020-01-01,2\n", "row 1, column 'a' holds '2020-01-01'"),
    ],
)
def test_bad_csv_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_table(write(tmp_path / "t.csv", text))


def test_one_column_is_a_table_but_no_data_set(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a\n1\n2\n")
    assert read_table(path).columns == ("a",)
    with pytest.raises(InputError, match="only 'a'"):
        read(path)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.parquet", "t.npz"])
def test_a_file_that_is_not_of_its_kind_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"certainly not that")
    with pytest.raises(InputError, match="not a readable"):
        read_table(tmp_path / name)


def test_a_gzip_cut_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv.gz", csv_text(True) * 500)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a readable CSV"):
        read_table(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,b\n1,2\n" * 9000 + b"\xff\xfe,3\n")
    with pytest.raises(InputError, match="not a readable CSV"):
        read_table(tmp_path / "t.csv")


def test_missing_and_unknown_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / "t.csv")
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(InputError, match=r"unknown kind of table '\.xlsx'"):
        read_table(tmp_path / "t.xlsx")


@pytest.mark.parametrize(
    "cells, says",
    [
        ([1.0, None], "row 2, column 'b' is missing"),
        (["1", "x"], "row 2, column 'b' holds 'x'"),
        (pd.to_datetime(["2020-01-01", "2020-01-02"]), "column 'b' holds dates"),
        ([[1.0], [2.0]], r"column 'b' holds (no plain numbers|array)"),
    ],
)
def test_bad_parquet_is_refused(tmp_path: Path, cells: object, says: str) -> None:
    pd.DataFrame({"a": [1.0, 2.0], "b": cells}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=says):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    "arrays, says",
    [
        ({"Z": VALUES}, "no array 'X'"),
        ({"X": VALUES[0]}, "expected numbers as X"),
        ({"X": VALUES, "y": VALUES}, "expected numbers as X"),
        ({"X": np.array([["a", "b"]])}, "expected numbers as X"),
        ({"X": np.array([[1, "a"]], dtype=object)}, "plain arrays"),
        ({"X": VALUES, "feature_names": np.array(["a"])}, "1 feature names for the 3 columns"),
        ({"X": np.array([[1.0, np.nan]])}, "row 1, column 'x2' is missing"),
        ({"X": np.empty((0, 2))}, "no rows"),
    ],
)
def test_bad_npz_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(InputError, match=says):
        read_table(tmp_path / "t.npz")
