"""Sizes are checked before they are believed: bombs and absurd headers are refused within little memory and time."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rtgp._estimator.regressor import GPRegressor
from rtgp.datasets import _csv_files as csv_files
from rtgp.datasets import _download as download
from rtgp.datasets import _limits as limits
from rtgp.datasets import read_table
from rtgp.errors import InputError, OutOfMemoryError


def npy(described: str, shape: tuple[int, ...], content: bytes) -> bytes:
    header = f"{{'descr': {described!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def gzip_bomb(path: Path, piece: bytes, times: int) -> Path:
    """Without ever holding what comes out of it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        for _ in range(times):
            file.write(packer.compress(piece * 2**16))
        file.write(packer.flush())
    return path


@pytest.mark.parametrize("piece", [b"0,0\n", b"0,0,", b"\n"], ids=["rows", "one line", "blank lines"])
def test_gzip_bombs(piece: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_ALWAYS", 2**23)  # as large a bomb as the real limit asks for takes its time
    path = gzip_bomb(tmp_path / "t.csv.gz", piece, 2**24 // len(piece) // 2**16)
    assert path.stat().st_size < 2**16
    with pytest.raises(InputError, match=r"100 times as large as its file|a line of more than|blank lines"):
        read_table(path)


def test_a_well_compressed_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"0,1\n" * 200_000))
    assert read_table(tmp_path / "t.csv.gz").values.shape == (200_000, 2)


def test_a_line_of_a_million_commas(tmp_path: Path) -> None:
    for text in ("," * 10**6, "a,b\n" + "1," * 10**6, "a\n" + "," * (2**24 + 1)):
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(InputError, match=r"columns\. Expected at most 100,000|a line of more than|is empty"):
            read_table(tmp_path / "t.csv", header=None if text[0] != "," else False)


@pytest.mark.parametrize(
    ("described", "shape", "content"),
    [
        ("<f8", (10**12, 3), bytes(24)),
        ("<f8", (2**62, 4), bytes(24)),
        ("<f8", (-1, 3), bytes(24)),
        ("<f8", (1, 2), bytes(24)),
        ("|O", (1, 3), b"cos\nsystem\n(S'true'\ntR."),
        ("<f8", (0, 10**12), b""),
        ("<f8", (10**12, 0), b""),
        ("<M8[s]", (1, 3), bytes(24)),
        ("(3,)<f8", (1,), bytes(24)),
    ],
)
def test_absurd_arrays(described: str, shape: tuple[int, ...], content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"plain arrays|no rows|expected numbers"):
        read_table(npz(tmp_path / "t.npz", X=npy(described, shape, content)))


def test_absurd_names(tmp_path: Path) -> None:
    X = npy("<f8", (1, 3), bytes(24))
    with pytest.raises(InputError, match=r"1000000000000 feature names|itemsize cannot be zero"):
        read_table(npz(tmp_path / "t.npz", X=X, feature_names=npy("<U0", (10**12,), b"")))
    with pytest.raises(InputError, match="names of 40,000 bytes"):
        read_table(npz(tmp_path / "t.npz", X=X, feature_names=npy("<U10000", (3,), bytes(120_000))))
    y, two = npy("<f8", (1,), bytes(8)), npy("<U1", (2,), bytes(8))
    with pytest.raises(InputError, match="2 target names"):
        read_table(npz(tmp_path / "t.npz", X=X, y=y, target_name=two))


def test_a_zip_bomb(tmp_path: Path) -> None:
    path = npz(tmp_path / "t.npz", X=npy("<f8", (2**24, 1), bytes(2**27)))
    assert path.stat().st_size < 2**18
    with pytest.raises(InputError, match="100 times as large"):
        read_table(path)


def test_an_array_that_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.ones((2, 2)))
    (tmp_path / "t.npy").rename(tmp_path / "t.npz")
    with pytest.raises(InputError, match="not a readable NPZ"):
        read_table(tmp_path / "t.npz")


def test_parquet_bombs(tmp_path: Path) -> None:
    """A column of one number, and one of one long text, repeated at no cost to the file."""
    path = tmp_path / "t.parquet"
    with pq.ParquetWriter(path, pa.schema([("a", pa.int64())]), compression="zstd") as writer:
        for _ in range(4):
            writer.write_table(pa.table({"a": pa.array(np.zeros(2**22, dtype=np.int64))}))
    assert path.stat().st_size < 2**18
    with pytest.raises(InputError, match="100 times as large"):
        read_table(path)
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, dtype=np.int32)), pa.array(["x" * 2**17]))
    pq.write_table(pa.table({"a": text}), path, compression="zstd", store_schema=False)  # 13 GB as plain text
    with pytest.raises(InputError, match=r"row 1, column 'a' holds 'xxx"):
        read_table(path)


def test_parquet_columns_keep_their_meaning(tmp_path: Path) -> None:
    """As pandas reads them: numbers as text, and an index that is no column."""
    import pandas as pd

    frame = pd.DataFrame({"a": ["1", "2.5"], "b": [True, False]}, index=pd.Index([7, 9], name="id"))
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.columns == ("a", "b")
    np.testing.assert_array_equal(table.values, [[1.0, 1.0], [2.5, 0.0]])


def test_a_file_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_memory", lambda: 10)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(OutOfMemoryError, match="Read fewer rows"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(InputError, match="100 times as large"):
        limits.check_expansion(tmp_path / "t.csv", 2**40)


def test_a_kernel_of_more_numbers_than_its_file(tmp_path: Path) -> None:
    """A thousand kernels of a thousand mixtures of many inputs would take a terabyte."""
    import hashlib

    from safetensors.torch import load, save

    X = np.random.default_rng(0).normal(size=(9, 2))
    GPRegressor(steps=1, random_state=0).fit(X, X[:, 0] + X[:, 1] ** 2).save(tmp_path)
    tensors = load((tmp_path / "model.safetensors").read_bytes())
    tensors |= {name: tensors[name][:1].repeat(10_000) for name in ("columns", "x_mean", "x_scale")}
    blob = save(tensors)
    record = json.loads((tmp_path / "model.json").read_text())
    mixture = {"class": "SpectralMixtureKernel", "num_mixtures": 1000, "ard_num_dims": 10_000}
    record["content"]["kernel"] = {"class": "AdditiveKernel", "kernels": [mixture] * 900}
    record["tensor_bytes"] = len(blob)
    del record["checksum"]
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode() + blob).hexdigest()
    (tmp_path / "model.json").write_text(json.dumps({**record, "checksum": digest}))
    (tmp_path / "model.safetensors").write_bytes(blob)
    with pytest.raises(InputError, match=r"num_mixtures = 1000|numbers of its state"):
        GPRegressor.load(tmp_path)


def test_an_archive_in_memory_is_not_needed(tmp_path: Path) -> None:
    """Other members of an archive are not unpacked, however large."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, X=np.ones((2, 2)), huge=np.zeros(2**24))
    (tmp_path / "t.npz").write_bytes(buffer.getvalue())
    assert read_table(tmp_path / "t.npz").values.shape == (2, 2)


def test_rows_are_counted_over_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "_CHUNK", 6)
    good = "a,b\n" + "".join(f"{i},{i / 2}\n" for i in range(10))
    (tmp_path / "t.csv").write_text(good)
    np.testing.assert_array_equal(read_table(tmp_path / "t.csv").values, [[i, i / 2] for i in range(10)])
    (tmp_path / "t.csv").write_text(good + "1,x\n")
    with pytest.raises(InputError, match="row 11, column 'b' holds 'x'"):
        read_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text(good + "1,2,3\n")
    with pytest.raises(InputError, match="line 12 has 3 columns where the first row of data has 2"):
        read_table(tmp_path / "t.csv")


def test_a_download_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 2**21)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(bytes(2**22)))
    with pytest.raises(InputError, match="it was discarded"):
        download.download("https://example.org/t.csv", "0" * 64, tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []
