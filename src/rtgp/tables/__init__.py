"""Tables as people have them: words, dates, gaps and keys among the numbers."""

from rtgp.tables.encoder import TableEncoder
from rtgp.tables.preparing import Prepared, TableSettings, prepare
from rtgp.tables.reading import RawTable, read

__all__ = ["Prepared", "RawTable", "TableEncoder", "TableSettings", "prepare", "read"]
