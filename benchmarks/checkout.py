"""On import, the root of the checkout is on Python's path, so that scripts here can import `reproduction`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
