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
    """One launch configuration. The defaults are meant for an H100 or H200; results do not depend on them beyond
    rounding."""

    block_rows: int = 128  # BLOCK_M: rows of K per program
    block_columns: int = 64  # BLOCK_N: columns of K per step of its loop
    warps: int = 4
    stages: int = 2
    splits: int = 0  # programs that share the columns of one row block; 0: as many as fill the card
    direct: int = 4  # up to this many inputs, distances come from differences; beyond, from one product
    symmetric: bool = False  # square K: each tile used twice, by atomic additions, whose order is not fixed
    arithmetic: str = ""  # of K @ V: one of ARITHMETICS; empty: float16x3, or tf32 where `precision` says so
    gradient_rows: int = 64
    gradient_columns: int = 64
    gradient_warps: int = 4

    def __post_init__(self) -> None:
        for name in ("block_rows", "block_columns", "gradient_rows", "gradient_columns"):
            if getattr(self, name) not in _BLOCKS:
                raise SettingError(f"The {name!r} parameter must be one of {_BLOCKS}. Got {getattr(self, name)!r}.")
        if self.arithmetic not in ("", *ARITHMETICS):
            raise SettingError(f"The 'arithmetic' parameter must be one of {ARITHMETICS}. Got {self.arithmetic!r}.")

    def fitted(self, width: int) -> Tuning:
        """Smaller blocks and fewer stages where the inputs are wide: a program's shared memory is 227 KiB at most."""
        if width <= _WIDE:
            return self
        return replace(
            self,
            block_rows=min(self.block_rows, 64),
            block_columns=min(self.block_columns, 64),
            gradient_columns=min(self.gradient_columns, 32),
            gradient_rows=min(self.gradient_rows, 64),
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
