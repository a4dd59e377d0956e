"""K(X, X) as an operator: products, gradients and rows, without an autograd tape over n x n."""

from rtgp.operators.choose import Choice, choose, make, make_from_form
from rtgp.operators.dense import DenseOperator
from rtgp.operators.protocol import CrossOperator, KernelOperator, attach_gradients
from rtgp.operators.tiled import TiledOperator
from rtgp.operators.triton import TritonOperator

__all__ = [
    "Choice",
    "CrossOperator",
    "DenseOperator",
    "KernelOperator",
    "TiledOperator",
    "TritonOperator",
    "attach_gradients",
    "choose",
    "make",
    "make_from_form",
]
