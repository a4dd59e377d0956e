"""Fits by all eight methods in a process of its own; their bits as JSON: python repeat_once.py THREADS [thorough]"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from properties.eight import fingerprints
from rtgp.errors import ApproximationWarning

if __name__ == "__main__":
    warnings.simplefilter("ignore", ApproximationWarning)
    sys.stdout.write(json.dumps(fingerprints(int(sys.argv[1]), thorough=sys.argv[2:] == ["thorough"])))
