"""Cleaning and splits of the spatial sets: on files of a few rows, and on the real ones."""

from __future__ import annotations

import gzip
import lzma
import math
from pathlib import Path

import numpy as np
import pytest

from rtgp import datasets
from rtgp.datasets import Dataset
from rtgp.errors import InputError

BRITAIN = """line_and_segment,year,longitude,latitude,height_m,total_field_anomaly_nt
FL1-1,1955,-1.5,53.0,792,62
FL1-1,1955,-1.5,53.0,792,62
FL1-2,1955,-1.5,53.0,792,64
FL2-1,1956,-1.4,54.0,500,-10
"""
HEATON = """Lon,Lat,MaskTemp,TrueTemp
-95.9,37.0,,
-95.8,37.0,30.5,30.5
-95.7,36.9,,31.5
-95.6,36.9,32.0,32.0
-95.5,36.8,33.0,33.0
-95.4,36.8,34.0,34.0
"""


def osborne(lines: int = 20, each: int = 7) -> str:
    rows = ["flight_line,longitude,latitude,height_orthometric_m,total_field_anomaly_nt"]
    for line in range(lines):
        rows += [f"{5576 + 10 * line},{140.6 + 0.001 * k},{-21.8 - 0.01 * line},367,{-100 + k}" for k in range(each)]
    return "\n".join(rows) + "\n"


def test_britain_drops_rows_given_twice_and_has_kilometres(tmp_path: Path) -> None:
    (tmp_path / "britain-magnetic.csv.xz").write_bytes(lzma.compress(BRITAIN.encode()))
    data = datasets.load("britain-magnetic", tmp_path)
    assert data.y.tolist() == [62.0, 64.0, -10.0]  # measured twice is not given twice
    east = -1.5 * 111.2 * math.cos(math.radians(54.0))
    np.testing.assert_allclose(data.X[0], [east, 53.0 * 111.2, 0.792])
    assert (data.feature_names, data.target_name) == (("east_km", "north_km", "height_km"), "anomaly_nt")


def test_osborne_is_split_by_flight_line(tmp_path: Path) -> None:
    (tmp_path / "osborne-magnetic.csv").write_text(osborne())
    data = datasets.load("osborne-magnetic", tmp_path)
    assert len(np.unique(data.groups)) == 20
    parts = data.split(seed=0)
    assert [len(part) for part in parts] == [91, 21, 28]
    lines = [set(part.groups.tolist()) for part in parts]
    assert sum(map(len, lines)) == len(set.union(*lines)) == 20
    assert data.split(seed=1).test.groups.tolist() != parts.test.groups.tolist()


def test_heaton_has_the_test_rows_of_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "heaton-satellite.csv.gz").write_bytes(gzip.compress(HEATON.encode()))
    data = datasets.load("heaton-satellite", tmp_path)
    assert len(data) == 5  # what nobody saw is dropped
    for seed in (0, 1):
        parts = data.split(seed, standardise=False)
        assert parts.test.y.tolist() == [31.5]
        assert sorted([*parts.train.y, *parts.validation.y]) == [30.5, 32.0, 33.0, 34.0]
        assert len(parts.train) == 3
    assert data.split(0).test.scaling is not None
    assert data.split(0).test.test_rows is None  # a part can be divided again, by rows


def test_rows_and_subsets_keep_their_groups_and_test_rows() -> None:
    data = Dataset(np.arange(10.0)[:, None], np.arange(10.0), groups=np.arange(10) // 2, test_rows=np.arange(10) > 7)
    some = data.subset(4, seed=0)
    assert (some.groups == some.y.astype(int) // 2).all()
    assert (some.test_rows == (some.y > 7)).all()
    assert (data.standardised().original().groups == data.groups).all()


def test_a_part_without_rows_is_refused() -> None:
    X, y = np.arange(10.0)[:, None], np.arange(10.0)
    with pytest.raises(InputError, match="would be empty"):
        Dataset(X, y, groups=np.zeros(10, dtype=int)).split(0)
    with pytest.raises(InputError, match="would be empty"):
        Dataset(X, y, test_rows=np.zeros(10, dtype=bool)).split(0)
    with pytest.raises(InputError, match=r"one entry for each of the 10 rows. Got shape \(3,\)"):
        Dataset(X, y, groups=np.zeros(3, dtype=int))


@pytest.mark.parametrize("text", ["a,b\n1,2\n", BRITAIN.replace("792", "high"), ""])
def test_other_files_of_that_name_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "britain-magnetic.csv").write_text(text)
    with pytest.raises(InputError, match=r"britain-magnetic\.csv"):
        datasets.load("britain-magnetic", tmp_path)
    (tmp_path / "osborne-magnetic.csv.xz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="not a readable CSV"):
        datasets.load("osborne-magnetic", tmp_path)


@pytest.mark.real_data
def test_the_real_sets(real_data: Path) -> None:
    britain = datasets.load("britain-magnetic", real_data)
    assert britain.X.shape == (480_746, 3)
    osborne = datasets.load("osborne-magnetic", real_data)
    assert osborne.X.shape == (990_987, 3)
    assert len(np.unique(osborne.groups)) == 307
    shares = np.array([len(part) for part in osborne.split(0, standardise=False)]) / len(osborne)
    np.testing.assert_allclose(shares, [0.64, 0.16, 0.2], atol=0.02)
    parts = datasets.load("heaton-satellite", real_data).split(0)
    assert len(parts.train) + len(parts.validation) == 105_569
    assert len(parts.test) == 42_740
