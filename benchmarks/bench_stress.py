"""Value and gradient at extreme hyperparameters, against references in more digits than float64 has.

python benchmarks/bench_stress.py                     # cells that have no row yet, the cheapest first
python benchmarks/bench_stress.py --minutes 20 --again     # all cells, also those that have a row
python benchmarks/bench_stress.py --docs > docs/numerical_limits.md
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from stress.cells import TEN_PROBES, Cell, Data, make_data, row_of
from stress.page import KEY, document, read

NOISES = (1e-8, 1e-6, 1e-4, 1e-2, 1.0, 10.0)
LENGTHSCALES = (1e-3, 0.1, 1.0, 10.0, 1e3)
METHODS = ("cholesky", "cg", "rr-cg")
DTYPES = ("float64", "float32")


def cells() -> Iterator[Cell]:
    """By rising cost: everything at n = 300, a part at 2,000, a few at 20,000. Where the name of a method does not end
    in TEN_PROBES its probes are all directions."""
    every = [(dtype, method) for method in METHODS for dtype in DTYPES]
    for noise in NOISES:
        for lengthscale in LENGTHSCALES:
            yield from (Cell(300, "grid", lengthscale, noise, *one) for one in every)
    for noise in (1e-11, 1e-13, 1e-15):  # up to the limit of float64, and beyond
        for lengthscale in LENGTHSCALES:
            yield from (Cell(300, "grid", lengthscale, noise, "float64", method) for method in ("cholesky", "rr-cg"))
    for kind in ("scattered", "six inputs", "duplicates", "outlier in x", "outlier in y"):
        for noise in (1e-8, 1e-2):
            for lengthscale in (0.1, 1e3):
                yield from (Cell(300, kind, lengthscale, noise, *one) for one in every)
    # CG has the code of RR-CG; with random probes it scatters more.
    two = [(dtype, method) for method in ("cholesky", "rr-cg", "rr-cg" + TEN_PROBES) for dtype in DTYPES]
    for noise, lengthscale in ((1e-2, 0.1), (1e-8, 1e3), (1e-2, 1e3), (1e-8, 1.0), (1e-8, 1e-3)):
        yield from (Cell(2000, "grid", lengthscale, noise, *one) for one in two)
    for kind in ("duplicates", "outlier in x", "outlier in y"):
        yield from (Cell(2000, kind, 0.1, 1e-2, *one) for one in two)
    yield from (Cell(2000, "grid", 0.1, 1e-8, dtype, "cholesky") for dtype in DTYPES)
    yield Cell(2000, "grid", 0.1, 1e-8, "float64", "rr-cg")
    yield Cell(20000, "grid", 0.3, 1e-2, "float32", "rr-cg" + TEN_PROBES)
    yield Cell(20000, "duplicates", 0.3, 1e-2, "float32", "rr-cg" + TEN_PROBES)
    yield Cell(20000, "grid", 0.3, 1e-8, "float32", "rr-cg" + TEN_PROBES)


@lru_cache(maxsize=16)
def data_of(n: int, kind: str) -> Data:
    return make_data(n, kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="no cell is begun after so many")
    parser.add_argument("--largest", type=int, default=20000, help="number of points")
    parser.add_argument("--again", action="store_true", help="also cells that have a row")
    parser.add_argument("--docs", action="store_true", help="write the page that the rows make")
    arguments = parser.parse_args()
    if arguments.docs:
        sys.stdout.write(document(read()))
        return
    warnings.simplefilter("ignore")
    done = set() if arguments.again else {tuple(row[key] for key in KEY) for row in read()}
    begin = time.perf_counter()
    for cell in cells():
        known = tuple(str(getattr(cell, key)) for key in KEY) in done
        if known or cell.n > arguments.largest or time.perf_counter() - begin > 60 * arguments.minutes:
            continue
        row = row_of(cell, data_of(cell.n, cell.data), steps=3 if cell.n <= 300 else 0)
        print(row, flush=True)
        record.append("stress", [row])


if __name__ == "__main__":
    main()
