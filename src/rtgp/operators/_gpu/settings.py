"""How the fused kernels are launched: precision and block sizes, frozen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rtgp.errors import SettingError

PRECISIONS = ("float32", "tf32")
ARITHMETICS = ("float16x3", "tf32x3", "ieee", "tf32")
_BLOCKS = (16, 32, 64, 128, 256)
_WIDE = 64  # of the expanded inputs: three times their number and six


@dataclass(frozen=True)
class Tuning:
    """One launch configuration; results do not depend on it beyond rounding. 0: what was fastest on an H200, which
    differs between distances from differences (few inputs) and from one product (benchmarks/results/gpu_tuning.csv)."""

    block_rows: int = 0  # BLOCK_M: rows of K per program
    block_columns: int = 0  # BLOCK_N: columns of K per step of its loop
    warps: int = 4
    stages: int = 0
    splits: int = 0  # programs that share the columns of one row block; 0: as many as fill the card
    direct: int = 4  # up to this many inputs, distances come from differences; beyond, from one product
    # Square K: each tile used twice, by atomic additions, whose order is not fixed. None: where that is faster.
    symmetric: bool | None = None
    arithmetic: str = ""  # of K @ V: one of ARITHMETICS; empty: float16x3, or tf32 where `precision` says so
    gradient_rows: int = 128
    gradient_columns: int = 64
    gradient_warps: int = 4

    def __post_init__(self) -> None:
        for name in ("block_rows", "block_columns", "gradient_rows", "gradient_columns"):
            if getattr(self, name) not in (0, *_BLOCKS):
                raise SettingError(f"The {name!r} parameter must be one of {_BLOCKS}. Got {getattr(self, name)!r}.")
        if self.arithmetic not in ("", *ARITHMETICS):
            raise SettingError(f"The 'arithmetic' parameter must be one of {ARITHMETICS}. Got {self.arithmetic!r}.")

    def fitted(self, width: int) -> Tuning:
        """With nothing left open, for expanded inputs of this width (0: none). Smaller blocks and fewer stages where
        the inputs are wide: a program's shared memory is 227 KiB at most."""
        chosen = replace(
            self,
            block_rows=self.block_rows or 64,
            block_columns=self.block_columns or (128 if width == 0 else 64),
            stages=self.stages or (3 if width == 0 else 2),
            symmetric=width > 0 if self.symmetric is None else self.symmetric,
        )
        if width <= _WIDE:
            return chosen
        return replace(
            chosen,
            block_rows=min(chosen.block_rows, 64),
            block_columns=min(chosen.block_columns, 64),
            gradient_columns=min(chosen.gradient_columns, 32),
            gradient_rows=min(chosen.gradient_rows, 64),
            stages=1,
        )


def arithmetic_of(precision: str, tuning: Tuning) -> str:
    """How K @ V is multiplied. float16x3: K and V each as the sum of two float16 numbers, three products; error 1e-6
    like tf32x3, at the rate of half precision."""
    if precision not in PRECISIONS:
        raise SettingError(f"The 'precision' parameter must be one of {PRECISIONS}. Got {precision!r} instead.")
    return tuning.arithmetic or ("float16x3" if precision == "float32" else "tf32")


def split_count(row_blocks: int, column_blocks: int, processors: int, wanted: int = 0) -> int:
    """Into how many parts the columns are split: enough programs for every multiprocessor to hold four, but at least
    eight steps of the loop for each."""
    if wanted > 0:
        return min(wanted, column_blocks)
    return max(1, min(4 * processors // row_blocks, column_blocks // 8))
