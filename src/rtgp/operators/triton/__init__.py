"""Fused kernel products on a CUDA card. Importing this needs no Triton; making a `TritonOperator` does."""

from rtgp.operators.triton.availability import SUPPORTED, supported
from rtgp.operators.triton.operator import HalfOperator, TritonOperator
from rtgp.operators.triton.points import half_bytes
from rtgp.operators.triton.settings import Tuning

__all__ = ["SUPPORTED", "HalfOperator", "TritonOperator", "Tuning", "half_bytes", "supported"]
