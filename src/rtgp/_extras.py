"""Extras: packages that only some tasks need, and one sentence that says how to install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rtgp.errors import NotInstalledError


@contextmanager
def needs(extra: str, work: str) -> Iterator[None]:
    """A context for imports of packages of an extra: one that is not installed becomes a NotInstalledError.

    `work` is what needs it, as the sentence begins: "A report".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "rtgp"):  # a fault of our own, which no installation mends
            raise
        raise NotInstalledError(
            f"{work} needs the package {package}, which is not installed: pip install 'rtgp[{extra}]'."
        ) from error
