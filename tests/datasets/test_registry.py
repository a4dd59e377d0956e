"""Named sets: where files are looked for, downloads, the bundled set, and the real ones."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rtgp import datasets
from rtgp.datasets import _registry as registry
from rtgp.datasets._download import download
from rtgp.errors import InputError, SettingError


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Three empty folders in place of the argument, RTGP_DATA and the user's cache; the network is out of reach."""
    folders = {name: tmp_path / name for name in ("argument", "environment", "cache")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setenv("RTGP_DATA", str(folders["environment"]))
    monkeypatch.setattr(registry, "cache_dir", lambda: folders["cache"])

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    return folders


def test_look_up_order(places: dict[str, Path]) -> None:
    for i, place in enumerate(("cache", "environment", "argument")):
        (places[place] / "pol.csv").write_text(f"1,2,{i}\n3,4,{i}\n")
        assert datasets.load("pol", data_dir=places["argument"]).y[0] == i
    assert datasets.load("pol").y[0] == 1


def test_names_and_columns(places: dict[str, Path]) -> None:
    (places["argument"] / "kin40k.csv").write_text("1,2,3\n4,5,6\n")
    data = datasets.load("kin40k", data_dir=str(places["argument"]))
    assert (data.name, data.feature_names, data.target_name) == ("kin40k", ("x1", "x2"), "y")
    np.testing.assert_array_equal(data.X, [[1, 2], [4, 5]])
    np.testing.assert_array_equal(data.y, [3, 6])


def test_precipitation_has_a_header(places: dict[str, Path]) -> None:
    (places["cache"] / "precipitation.csv").write_text("Year,X,Y,prcp\n2010.0,1.25,-88.75,-0.5\n")
    data = datasets.load("precipitation")
    assert (data.feature_names, data.target_name) == (("Year", "X", "Y"), "prcp")
    assert data.y.tolist() == [-0.5]


def test_3droad_reads_the_public_file_with_the_osm_id_as_an_input(places: dict[str, Path]) -> None:
    (places["cache"] / "3D_spatial_network.txt").write_text("144552912,9.35,56.74,17.05\n144552913,9.36,56.75,17.61\n")
    data = datasets.load("3droad")
    assert (data.feature_names, data.target_name) == (("osm_id", "longitude", "latitude"), "altitude")
    assert data.y.tolist() == [17.05, 17.61]


def test_a_file_with_other_columns_is_refused(places: dict[str, Path]) -> None:
    (places["cache"] / "3D_spatial_network.txt").write_text("9.35,56.74,17.05\n")
    with pytest.raises(InputError, match=r"expected the columns osm_id, .* Got 3"):
        datasets.load("3droad")
    (places["cache"] / "pol.csv").write_text("1\n2\n")
    with pytest.raises(InputError, match="Got one column"):
        datasets.load("pol")


def test_a_missing_file_says_what_was_looked_for_where_and_what_to_do(places: dict[str, Path]) -> None:
    with pytest.raises(InputError) as caught:
        datasets.load("pol", data_dir=places["argument"])
    message = str(caught.value)
    for part in ("pol.csv.gz", *map(str, places.values()), "data_dir=", "RTGP_DATA"):
        assert part in message


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"pol, elevators, .*us-airports\. Got 'poll'"):
        datasets.load("poll")


def test_a_data_dir_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="existing folder"):
        datasets.load("pol", data_dir=tmp_path / "nowhere")


def test_no_network_is_a_clear_error_and_leaves_nothing(places: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"3D_spatial_network.txt could not be downloaded .*store it as"):
        datasets.load("3droad")
    assert list(places["cache"].iterdir()) == []


class TestDownload:
    content = b"1,2,3,4\n"

    @pytest.fixture(autouse=True)
    def from_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "archive").write_bytes(self.content)
        monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: (tmp_path / "archive").open("rb"))

    def test_stores_what_has_the_checksum(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "folder" / "file.txt"
        download("https://example.org/file.txt", hashlib.sha256(self.content).hexdigest(), path)
        assert path.read_bytes() == self.content
        assert [file.name for file in path.parent.iterdir()] == ["file.txt"]

    def test_discards_what_has_not(self, places: dict[str, Path]) -> None:
        with pytest.raises(InputError, match="expected d83303a61dc3"):
            datasets.load("3droad")
        assert list(places["cache"].iterdir()) == []


def test_us_airports_comes_with_the_package() -> None:
    data = datasets.load("us-airports")
    assert (data.feature_names, data.target_name) == (("longitude", "latitude"), "elevation")
    assert 11_000 < len(data) < 13_000
    assert (data.y != 0).all()
    denver = (np.abs(data.X - [-104.9, 39.7]) < 0.5).all(axis=1)
    miami = (np.abs(data.X - [-80.3, 25.8]) < 0.5).all(axis=1)
    assert data.y[denver].mean() > 5000
    assert data.y[miami].mean() < 30


def test_cache_folder_follows_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert registry.cache_dir() == tmp_path / "rtgp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert registry.cache_dir() == Path.home() / ".cache" / "rtgp"


def test_importing_rtgp_loads_no_table_libraries() -> None:
    code = "import sys, rtgp.datasets; print({'pandas', 'pyarrow', 'airportsdata'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name, n, d",
    [
        ("pol", 15_000, 26),
        ("elevators", 16_599, 18),
        ("bike", 17_379, 17),
        ("kin40k", 40_000, 8),
        ("protein", 45_730, 9),
        ("keggdirected", 48_827, 20),
        ("keggundirected", 63_608, 27),
        ("precipitation", 101_270, 3),
    ],
)
def test_the_real_sets(real_data: Path, name: str, n: int, d: int) -> None:
    data = datasets.load(name, data_dir=real_data)
    assert data.X.shape == (n, d)
    train, _, test = data.split(0)
    assert len(train) == n * 64 // 100
    varies = data.X.max(axis=0) > data.X.min(axis=0)
    np.testing.assert_allclose(train.X.std(axis=0)[varies], 1, rtol=1e-6)
    assert np.isfinite(test.X).all()


@pytest.mark.real_data
def test_rows_of_3droad(real_data: Path) -> None:
    data = datasets.read(real_data / "3droad_sample.csv.gz")
    assert data.X.shape == (5000, 2)
    assert 8 < data.X[:, 0].min() < data.X[:, 0].max() < 12  # longitude in North Jutland
