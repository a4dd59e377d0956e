"""K(X, X) as an operator: products, gradients and rows, without an autograd tape over n x n."""

from rtgp.operators._choose import Choice, choose, group_for, is_sharded, make, make_from_form
from rtgp.operators._dense import DenseOperator
from rtgp.operators._gpu import TritonOperator
from rtgp.operators._near import NearOperator
from rtgp.operators._protocol import CrossOperator, KernelOperator, attach_gradients
from rtgp.operators._sharded import ShardedOperator
from rtgp.operators._tiled import TiledOperator

__all__ = [
    "Choice",
    "CrossOperator",
    "DenseOperator",
    "KernelOperator",
    "NearOperator",
    "ShardedOperator",
    "TiledOperator",
    "TritonOperator",
    "attach_gradients",
    "choose",
    "group_for",
    "is_sharded",
    "make",
    "make_from_form",
]
