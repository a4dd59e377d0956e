"""Predictions in pieces: what one piece gives, in memory that does not grow with the number of rows."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rtgp
from rtgp._cli import app, stream
from rtgp.datasets import _csv_files as csv_files
from rtgp.datasets import _pieces as pieces
from rtgp.datasets._pieces import table_pieces
from rtgp.errors import InputError, StorageError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.normal(size=(60, 2)), columns=["a", "b"])
    folder = tmp_path_factory.mktemp("model") / "m"
    rtgp.GPRegressor(device="cpu", steps=3, method="cholesky").fit(X, X["a"] - X["b"]).save(folder)
    return folder


def rows(n: int) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(1).normal(size=(n, 3)), columns=["b", "other", "a"])


def small(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    monkeypatch.setattr(csv_files, "_CHUNK", cells)
    monkeypatch.setattr(pieces, "_CELLS", cells)


def predict(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["predict", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "npz"])
def test_pieces_give_what_one_piece_gives(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, frame = tmp_path / f"new.{kind}", rows(250)
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "npz":
        np.savez(path, X=frame.to_numpy(), feature_names=np.array(frame.columns, dtype=str))
    else:
        frame.to_csv(path, index=False)
    options = ["--std", "--interval", "0.9"]
    predict(model, path, "-o", tmp_path / "whole.csv", *options)
    small(monkeypatch, 90)
    assert len(list(table_pieces(path))) == 9
    predict(model, path, "-o", tmp_path / "pieces.csv", *options)
    whole, several = (pd.read_csv(tmp_path / name) for name in ("whole.csv", "pieces.csv"))
    assert list(several.columns) == ["mean", "std", "lower", "upper"]
    assert len(several) == 250
    np.testing.assert_allclose(several, whole, rtol=1e-5, atol=1e-6)
    assert predict(model, path, *options) == (tmp_path / "pieces.csv").read_text()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of reading and writing: what a model needs besides depends on a piece too."""
    small(monkeypatch, 1500)

    def peak(path: Path) -> int:
        tracemalloc.start()
        try:
            found = (pd.DataFrame({"mean": table.values[:, 0]}) for table in table_pieces(path))
            stream.write_pieces(found, tmp_path / "out.csv")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for kind in ("csv", "csv.gz", "parquet"):
        few, many = tmp_path / f"few.{kind}", tmp_path / f"many.{kind}"
        for path, n in ((few, 15_000), (many, 60_000)):
            rows(n).to_parquet(path, row_group_size=500) if kind == "parquet" else rows(n).to_csv(path, index=False)
        peak(few)  # what is imported on first use
        assert peak(many) <= 1.3 * peak(few) + 100_000, kind


def test_an_error_in_a_late_piece_leaves_no_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, 90)
    frame = rows(100)
    frame.loc[70, "a"] = np.nan
    with gzip.open(tmp_path / "new.csv.gz", "wt") as file:
        frame.to_csv(file, index=False)
    (tmp_path / "out.csv").write_text("what stood there\n")
    said = predict(model, tmp_path / "new.csv.gz", "-o", tmp_path / "out.csv", code=2)
    assert "row 71, column 'a' is missing" in " ".join(said.split())
    assert (tmp_path / "out.csv").read_text() == "what stood there\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv.gz", "out.csv"]


def test_a_place_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"out\.csv could not be written"):
        stream.write_pieces([pd.DataFrame({"mean": np.zeros(3)})], tmp_path / "no folder" / "out.csv")


def test_pieces_refuse_what_the_whole_refuses(tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("a,b\n1,two\n")
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    (tmp_path / "none.csv").write_text("a,b\n")
    rows(3).iloc[:0].to_parquet(tmp_path / "none.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    for name in ("words.csv", "twice.csv", "none.csv", "none.parquet", "broken.parquet", "nothing.csv"):
        with pytest.raises(InputError) as ours:
            list(table_pieces(tmp_path / name))
        with pytest.raises(InputError) as theirs:
            rtgp.datasets.read_table(tmp_path / name)
        assert str(ours.value) == str(theirs.value)
