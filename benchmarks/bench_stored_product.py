"""K @ V for a stored float32 matrix and few columns on a CPU: why `operators/product.py` does what it does."""

from __future__ import annotations

import time
from collections.abc import Callable

import record
import torch

from rtgp.operators.product import stored_product

N = 9600


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
    matrix = torch.rand(N, N, generator=generator)
    rows = []
    for columns in (1, 2, 4, 8, 11, 12, 16, 17, 24, 32, 48, 64):
        v = torch.randn(N, columns, generator=generator)
        plain, ours = best(lambda v=v: matrix @ v), best(lambda v=v: stored_product(matrix, v))
        rows.append(
            {
                "n": N,
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
