"""Tables as people have them: words, dates, gaps and keys among the numbers."""

from rtgp.tables._encoder import TableEncoder
from rtgp.tables._preparing import Prepared, TableSettings, prepare
from rtgp.tables._reading import RawTable, read

__all__ = ["Prepared", "RawTable", "TableEncoder", "TableSettings", "prepare", "read"]
