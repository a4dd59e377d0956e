"""Regression data: named sets, own tables, seeded splits."""

from rtgp.datasets.dataset import Dataset, Scaling, Split
from rtgp.datasets.registry import load, names
from rtgp.datasets.tables import Table, read, read_table

__all__ = ["Dataset", "Scaling", "Split", "Table", "load", "names", "read", "read_table"]
