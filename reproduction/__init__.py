"""Every figure, table and theorem of the paper, run again from one command each and judged."""

from reproduction.items import ITEMS, item
from reproduction.runner import Outcome, conclude, publish, run_cells, until
from reproduction.spec import SIZES, Cell, Check, Row, Setting, Size, Spec, Verdict

__all__ = [
    "ITEMS",
    "SIZES",
    "Cell",
    "Check",
    "Outcome",
    "Row",
    "Setting",
    "Size",
    "Spec",
    "Verdict",
    "conclude",
    "item",
    "publish",
    "run_cells",
    "until",
]
