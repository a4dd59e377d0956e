"""Everything that comes with rtgp may be used, changed and passed on with it: no licence that asks for more."""

from __future__ import annotations

import re
from importlib.metadata import Distribution
from typing import Any

import pytest

from supply_chain.closure import closure

# SPDX identifiers. All are permissive; LLVM's exception takes a duty away.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "HPND", "ISC", "LLVM-exception", "MIT",
    "MIT-CMU", "PSF-2.0", "Python-2.0", "Zlib",
}  # fmt: skip
# What distributions of before SPDX expressions say instead.
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
WORDS = {"Apache-2.0", "BSD-3-Clause", "MIT"}  # of a short "License" field that is an identifier by itself


def licences(metadata: Any) -> set[str]:
    """The identifiers a distribution states; empty if it states none that is understood."""
    expression = metadata.get("License-Expression")
    if expression:
        return set(re.findall(r"[A-Za-z0-9][A-Za-z0-9.+-]*", expression)) - {"AND", "OR", "WITH"}
    stated = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    if stated:
        return {CLASSIFIERS.get(line.rpartition(" :: ")[2], line) for line in stated}
    word = (metadata.get("License") or "").strip()
    return {word} if word in WORDS else set()


DEPENDENCIES = closure("all")


def test_the_closure_is_that_of_the_run_time() -> None:
    assert {"torch", "gpytorch", "numpy", "sympy", "markupsafe"} <= DEPENDENCIES.keys()
    assert not {"pytest", "ruff", "mypy", "botorch", "sphinx"} & DEPENDENCIES.keys()
    assert {"airportsdata", "matplotlib", "pillow", "pyarrow"} <= DEPENDENCIES.keys() - closure().keys()


@pytest.mark.parametrize("name", sorted(DEPENDENCIES))
def test_the_licence_is_allowed(name: str) -> None:
    dependency: Distribution = DEPENDENCIES[name]
    found = licences(dependency.metadata)
    assert found, f"{name} {dependency.version} states no licence that is understood: read it, and add it here"
    assert found <= ALLOWED, f"{name} {dependency.version} is under {sorted(found - ALLOWED)}"


@pytest.mark.parametrize(
    "fields",
    [
        {"License-Expression": "MIT OR GPL-3.0-or-later"},
        {"License": "GPLv3"},
        {"Classifier": "License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)"},
        {},
    ],
)
def test_another_licence_would_be_found(fields: dict[str, str]) -> None:
    class Metadata(dict[str, str]):
        def get_all(self, name: str) -> list[str]:
            return [self[name]] if name in self else []

    found = licences(Metadata(fields))
    assert not found or not found <= ALLOWED
