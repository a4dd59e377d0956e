"""K @ V for a stored symmetric matrix and few columns on a CPU: why `operators/_product.py` does what it does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import record
import torch

from rtgp.operators._product import stored_product

N = 9600
COLUMNS = (1, 2, 4, 8, 11, 12, 16, 17, 24, 32, 48, 64)


def best(function: Callable[[], torch.Tensor], repeats: int = 7) -> float:
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds) * 1e3


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    single = torch.rand(N, N, generator=generator)
    single += single.T.clone()
    rows = []
    for dtype, columns in itertools.product((torch.float32, torch.float64), COLUMNS):
        matrix = single.to(dtype)
        v = torch.randn(N, columns, generator=generator, dtype=dtype)
        plain = best(lambda matrix=matrix, v=v: matrix @ v)
        ours = best(lambda matrix=matrix, v=v: stored_product(matrix, v, symmetric=True))
        rows.append(
            {
                "n": N,
                "dtype": str(dtype).removeprefix("torch."),
                "columns": columns,
                "torch_ms": round(plain, 1),
                "rtgp_ms": round(ours, 1),
                "times_faster": round(plain / ours, 2),
            }
        )
        print(rows[-1], flush=True)
    print(f"rows appended to {record.append('stored_product', rows).name}")


if __name__ == "__main__":
    main()
