"""Regression data: named sets, own tables, seeded splits."""

from rtgp.datasets._dataset import Dataset, Scaling, Split
from rtgp.datasets._registry import load, names
from rtgp.datasets._tables import Table, read, read_table

__all__ = ["Dataset", "Scaling", "Split", "Table", "load", "names", "read", "read_table"]
