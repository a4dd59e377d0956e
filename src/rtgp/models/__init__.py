"""Models other than the exact Gaussian process: a variational one and a product of experts."""

from rtgp.models.experts import ExpertsModel
from rtgp.models.variational import VariationalModel

__all__ = ["ExpertsModel", "VariationalModel"]
