"""The extensions of the documentation, and the programs that draw its pictures, are found by name."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("_ext", "pictures"):
    sys.path.append(str(Path(__file__).parents[2] / "docs" / folder))
