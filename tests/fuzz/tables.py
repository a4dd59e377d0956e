"""Hostile tables: whole ones of every kind to begin with, and the damage done to them."""

from __future__ import annotations

import gzip
import io
import random
import struct
import zipfile
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.mutations import NUMBERS, damage

CELLS = (
    "nan", "inf", "-inf", "1e999", "1e-400", "-0", "0x1p3", "1_000", "\u0661", "", " ", '"', '""', "'", "\x00",
    "9" * 400, "True", "=cmd()", "2020-01-01", "1;2", "\ufeff", "1+2j", "None", "NA", "\r", "\n", '"1\n2"', "1" * 20,
    "-" * 9, "18446744073709551616",
    "9223372036854775808", "1e5", ".5", "5.", "+1", "\ufffd",
)  # fmt: skip
DESCRIPTIONS = (
    "<f8", ">f8", "<f4", "<f2", "<i8", "<u1", "|b1", "<U5", "|S3", "|O", "<c16", "<M8[s]", "|V0", "<U0", "<f16",
    "<U1000000000", "(2,)f8", "a5", "f8,f8", "garbage", "",
)  # fmt: skip
SIZES = (-1, 0, 1, 2, 3, 10, 2**31, 2**40, 2**62, 2**63, 10**30)


@cache
def csv_texts() -> tuple[bytes, ...]:
    chance = np.random.default_rng(0)
    plain = "\n".join(",".join(map(repr, row)) for row in chance.normal(size=(20, 3)).tolist())
    named = "a,b,price\n" + "\n".join(f"{i},{i * i % 7},{i % 5}" for i in range(12)) + "\n"
    texts = (plain, named, named.replace("\n", "\r\n"), "\ufeff" + named, ' "a" , "b"\n1, "2"\n3,4\n\n', "x\n1\n2\n")
    return tuple(text.encode() for text in texts)


def csv(chance: random.Random) -> bytes:
    content = chance.choice(csv_texts())
    if chance.random() < 0.5:
        return damage(content, csv_texts(), chance)
    rows = [line.split(",") for line in content.decode().split("\n")]
    for _ in range(chance.choice((1, 1, 2, 5))):
        row = chance.choice(rows)
        kind = chance.randrange(5)
        if kind <= 1 and row:
            row[chance.randrange(len(row))] = chance.choice(CELLS)
        elif kind == 2:
            row += [chance.choice(CELLS)] * chance.choice((1, 2, 3, 2000))
        elif kind == 3:
            rows[chance.randrange(len(rows))] = []
        else:
            rows += [list(row) for _ in range(chance.choice((1, 100)))]
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")


def csv_gz(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.003:  # a bomb: 1,000 times as large as its file
        return gzip.compress(b"0,0\n" * chance.choice((2**21, 2**25)), 6, mtime=0)
    content = gzip.compress(csv(chance), chance.choice((0, 1, 9)), mtime=0)
    whole = [gzip.compress(text, mtime=0) for text in csv_texts()]
    if kind < 0.3:
        return content + chance.choice((b"", chance.choice(whole), chance.randbytes(5), bytes(1000)))
    return damage(content if chance.random() < 0.5 else chance.choice(whole), whole, chance)


@cache
def npz_files() -> tuple[bytes, ...]:
    found = []
    values = np.random.default_rng(1).normal(size=(6, 3))
    for arrays in (
        {"X": values},
        {"X": values[:, :2], "y": values[:, 2], "feature_names": np.array(["a", "b"]), "target_name": np.array("c")},
        {"X": np.asfortranarray(values.astype(np.float32)), "y": np.arange(6)},
        {"X": np.ones((3, 2), dtype=bool), "other": values},
    ):
        for save in (np.savez, np.savez_compressed):
            buffer = io.BytesIO()
            save(buffer, **arrays)
            found.append(buffer.getvalue())
    return tuple(found)


def npz(chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return damage(chance.choice(npz_files()), npz_files(), chance)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for key in ("X", "y", "feature_names", "target_name")[: chance.choice((1, 1, 2, 3, 4))]:
            name = f"{key}.npy" if chance.random() < 0.95 else key
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = chance.choice((0, 0, 8, 8, 12, 14))
            archive.writestr(info, _npy(chance))
    content = bytearray(buffer.getvalue())
    if chance.random() < 0.3:  # sizes, methods and flags in the archive's own headers
        marks = [at for mark in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for at in _all(content, mark)]
        at = chance.choice(marks) + 4 + 2 * chance.randrange(20)
        width = chance.choice((2, 4))
        content[at : at + width] = (chance.choice(NUMBERS) % 256**width).to_bytes(width, "little")
    return bytes(content)


def _npy(chance: random.Random) -> bytes:
    """An array by its parts: a header that may say anything before bytes that may be anything."""
    if chance.random() < 0.003:  # a bomb
        return (
            b"\x93NUMPY\x01\x00"
            + struct.pack("<H", 64)
            + b"{'descr': '<f8', 'fortran_order': False, 'shape': (0,)}"
            + (bytes(chance.choice((10, 2**27))))
        )
    shape = tuple(chance.choice(SIZES) for _ in range(chance.choice((0, 1, 2, 2, 2, 3))))
    if chance.random() < 0.5:
        shape = chance.choice(((6, 3), (6,), (6, 2), (2,), (0, 3), (0, 10**12), (10**12, 0)))
    described = chance.choice(DESCRIPTIONS) if chance.random() < 0.6 else "<f8"
    header = f"{{'descr': {described!r}, 'fortran_order': {chance.choice((True, False, 3))}, 'shape': {shape!r}, }}"
    if chance.random() < 0.1:
        header = chance.choice(
            ("(" * 5000, "{" * 300, "[]", "{}", "1+1", "'x' * 10**9", "__import__('os')", header[:-3])
        )
    encoded = header.encode() + b" " * chance.randrange(64) + b"\n"
    size = chance.choice((0, 8, 48, 96, 144, 1000))
    version = chance.choice((1, 1, 1, 2, 3, 9))
    length = struct.pack("<H" if version == 1 else "<I", len(encoded) if chance.random() < 0.9 else 65535)
    return b"\x93NUMPY" + bytes((version, 0)) + length + encoded + chance.randbytes(size)


def _all(content: bytes | bytearray, mark: bytes) -> list[int]:
    found, at = [], content.find(mark)
    while at >= 0:
        found.append(at)
        at = content.find(mark, at + 1)
    return found


@cache
def parquet_files() -> tuple[bytes, ...]:
    x = np.linspace(0.0, 1.0, 12)
    words = ["1", "2", "red", None] * 3
    tables = [
        pa.table({"a": x, "b": (x * 10).astype(np.int32), "flag": x > 0.5}),
        pa.table({"a": pa.array([1, None, 3] * 4), "b": pa.array(words), "c": pa.array([b"\x00"] * 12, pa.binary(1))}),
        pa.table({"a": pa.array([[1.0], [2.0, 3.0]]), "s": pa.array([{"q": 1}, {"q": 2}])}),
        pa.table({"d": pa.array([1, 2], pa.timestamp("us")), "e": pa.array([1, 2], pa.decimal128(10, 2))}),
        pa.table({"a": pa.array([0.5] * 3, pa.float16()), "b": pa.array([1, 2, 3], pa.uint64())}),
        pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": pa.array([1, 2, 3], pa.date32())}),
        pa.table({"a": pa.array([1.0] * 5000), "__index_level_0__": pa.array(range(5000))}),
    ]
    found = []
    for table in tables:
        for settings in (
            {"compression": "none"},
            {"compression": "snappy", "data_page_version": "2.0"},
            {"compression": "zstd", "use_dictionary": False, "row_group_size": 5},
            {"compression": "gzip", "store_schema": False},
        ):
            buffer = io.BytesIO()
            pq.write_table(table, buffer, **settings)
            found.append(buffer.getvalue())
    return tuple(found)


def parquet(chance: random.Random) -> bytes:
    content = chance.choice(parquet_files())
    if chance.random() < 0.4:
        return damage(content, parquet_files(), chance)
    # The footer by itself, with its length and the magic words made to fit again.
    length = struct.unpack("<I", content[-8:-4])[0]
    data, footer = content[4 : -8 - length], content[-8 - length : -8]
    if chance.random() < 0.3:
        data = damage(data, [other[4:-8] for other in parquet_files()], chance)
    else:
        footer = damage(footer, [other[-1000:-8] for other in parquet_files()], chance)
    claimed = len(footer) if chance.random() < 0.95 else chance.choice(NUMBERS) % 2**32
    return b"PAR1" + data + footer + struct.pack("<I", claimed) + b"PAR1"
