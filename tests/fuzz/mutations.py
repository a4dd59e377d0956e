"""Seeded damage to bytes and to trees of JSON: random bits, cuts, splices, and edits that know where sizes stand."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 10, 1000, 2**31, 2**63, 10**12, 10**30, -(10**18), 0.5, 1.5, -2.5, 1e308, 1e-308,
    "float:nan", "float:inf", "float:-inf", "", "x", "rbf", "cuda", "meta", "cpu", "../../etc/passwd", "os.system",
    "__class__", "a" * 5000, "\x00", "\ud83d\ude00", [], {}, [[]], [None], [1, 2, 3], {"class": "RBFKernel"},
    {"class": "Popen"}, {"tensor": "x", "device": "cpu"}, {"dict": [[1]]}, {"float": "nan"}, {"tuple": 3},
)  # fmt: skip


def damage(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """One to four random edits of a file; `others` of the same kind are there to be spliced in."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        found = chance.choice(_EDITS)(found, others, chance)
    return bytes(found)


def _flip(content: bytearray, others: Sequence[bytes], chance: random.Random) -> bytearray:
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def _overwrite(content: bytearray, others: Sequence[bytes], chance: random.Random) -> bytearray:
    at, width = chance.randrange(len(content) + 1), chance.choice((1, 2, 4, 8))
    value = chance.choice(NUMBERS) % 256**width
    content[at : at + width] = value.to_bytes(width, chance.choice(("little", "big")))
    return content


def _varint(content: bytearray, others: Sequence[bytes], chance: random.Random) -> bytearray:
    """A number as Thrift writes it, in which Parquet keeps every size."""
    at, value, written = chance.randrange(len(content) + 1), chance.choice(NUMBERS), bytearray()
    while value >= 128:
        written.append(value % 128 + 128)
        value //= 128
    written.append(value)
    content[at : at + chance.choice((1, len(written)))] = written
    return content


def _cut(content: bytearray, others: Sequence[bytes], chance: random.Random) -> bytearray:
    return content[: chance.randrange(len(content) + 1)]


def _remove(content: bytearray, others: Sequence[bytes], chance: random.Random) -> bytearray:
    at, length = chance.randrange(len(content) + 1), chance.choice((1, 2, 8, 64, 1000))
    del content[at : at + length]
    return content


def _repeat(content: bytearray, others: Sequence[bytes], chance: random.Random) -> bytearray:
    at, length = chance.randrange(len(content) + 1), chance.choice((1, 4, 30, 300))
    content[at:at] = content[at : at + length] * chance.choice((1, 2, 50))
    return content


def _splice(content: bytearray, others: Sequence[bytes], chance: random.Random) -> bytearray:
    other = chance.choice(others)
    at, to = chance.randrange(len(content) + 1), chance.randrange(len(other) + 1)
    return content[:at] + bytearray(other[to:])


def _insert(content: bytearray, others: Sequence[bytes], chance: random.Random) -> bytearray:
    at = chance.randrange(len(content) + 1)
    content[at:at] = chance.randbytes(chance.choice((1, 2, 16, 200)))
    return content


_EDITS: tuple[Callable[[bytearray, Sequence[bytes], random.Random], bytearray], ...] = (
    _flip, _flip, _overwrite, _varint, _cut, _remove, _repeat, _splice, _insert
)  # fmt: skip


def damage_tree(tree: Any, chance: random.Random) -> Any:
    """A copy of JSON data with one to four values replaced, removed, moved or repeated."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if places:
            _edit(*chance.choice(places), [holder[key] for holder, key in places], chance)
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every value, at any depth."""
    found: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack:
        holder = stack.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        found += [(holder, key) for key in keys]
        stack += [holder[key] for key in keys]
    return found


def _edit(holder: Any, key: Any, present: Sequence[Any], chance: random.Random) -> None:
    kind = chance.randrange(6)
    if kind <= 1:
        holder[key] = copy.deepcopy(chance.choice(VALUES))
    elif kind == 2:  # of the right sort, from elsewhere: the name of another class, another size
        holder[key] = copy.deepcopy(chance.choice(present))
    elif kind == 3:
        del holder[key]
    elif kind == 4 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = chance.choice((holder[key] + 1, -holder[key], holder[key] * 10**6, chance.choice(NUMBERS)))
    elif isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(chance.choice((1, 3, 1500)))]
    else:
        holder[str(chance.choice(VALUES))[:50]] = copy.deepcopy(holder[key])
