"""Which rows of an n x n matrix belong to which rank."""

from __future__ import annotations


def own_rows(n: int, rank: int, size: int) -> slice:
    """The block of one rank: all blocks together are [0, n), and none is more than one row longer than another."""
    return slice(rank * n // size, (rank + 1) * n // size)


def most_rows(n: int, size: int) -> int:
    """Of the longest block."""
    return -(-n // size)
