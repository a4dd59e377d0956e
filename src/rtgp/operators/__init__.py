"""K(X, X) as an operator: products, gradients and rows, without an autograd tape over n x n."""

from rtgp.operators.choose import Choice, choose, group_for, is_sharded, make, make_from_form
from rtgp.operators.dense import DenseOperator
from rtgp.operators.gpu import TritonOperator
from rtgp.operators.near import NearOperator
from rtgp.operators.protocol import CrossOperator, KernelOperator, attach_gradients
from rtgp.operators.sharded import ShardedOperator
from rtgp.operators.tiled import TiledOperator

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
