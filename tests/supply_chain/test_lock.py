"""requirements-dev.lock: every distribution that development needs, pinned as in constraints.txt, with its hash."""

from __future__ import annotations

import re
from pathlib import Path

from supply_chain.closure import ROOT, canonical, closure

# Each build of torch has a hash of its own (tools/lock.py); what it needs for CUDA only comes with it.
WITHOUT_HASH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")


def pins(path: Path) -> dict[str, str]:
    text = re.sub(r"#.*", "", path.read_text()).replace("\\\n", " ")
    found = {}
    for line in filter(str.strip, text.splitlines()):
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*", line)
        assert match, f"not a pin: {line!r}"
        assert canonical(match[1]) not in found, f"{match[1]} is pinned twice"
        found[canonical(match[1])] = match[2]
        assert match[3] or path.name == "constraints.txt", f"{match[1]} has no hash"
    return found


LOCK, CONSTRAINTS = pins(ROOT / "requirements-dev.lock"), pins(ROOT / "constraints.txt")


def test_everything_that_development_needs_is_locked() -> None:
    needed = {name for name in closure("dev") if not WITHOUT_HASH.fullmatch(name)}
    assert needed <= LOCK.keys(), f"make lock: {sorted(needed - LOCK.keys())}"
    assert LOCK.keys() <= needed | {"setuptools"}, f"no longer needed: {sorted(LOCK.keys() - needed)}"


def test_lock_and_constraints_say_the_same() -> None:
    assert CONSTRAINTS["torch"]
    assert {name: version for name, version in CONSTRAINTS.items() if not WITHOUT_HASH.fullmatch(name)} == LOCK
