"""Fused kernel products on a CUDA card. Importing this needs no Triton; making a `TritonOperator` does."""

from rtgp.operators.triton.availability import SUPPORTED, supported
from rtgp.operators.triton.operator import TritonOperator
from rtgp.operators.triton.settings import Tuning

__all__ = ["SUPPORTED", "TritonOperator", "Tuning", "supported"]
