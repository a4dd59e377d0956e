"""Fail unless lines and branches of a coverage report (JSON) reach what the project asks for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

LINES, BRANCHES = 95.0, 90.0


def main() -> None:
    totals = json.loads(Path(sys.argv[1]).read_text())["totals"]
    lines = 100.0 * totals["covered_lines"] / totals["num_statements"]
    branches = 100.0 * totals["covered_branches"] / totals["num_branches"]
    sys.stdout.write(f"lines {lines:.1f}% (wanted {LINES:g}%), branches {branches:.1f}% (wanted {BRANCHES:g}%)\n")
    sys.exit(lines < LINES or branches < BRANCHES)


if __name__ == "__main__":
    main()
