"""Fused kernel products on a CUDA card. Importing this needs no Triton; making a `TritonOperator` does."""

from rtgp.operators._gpu.availability import SUPPORTED, supported
from rtgp.operators._gpu.operator import HalfOperator, TritonOperator
from rtgp.operators._gpu.points import half_bytes
from rtgp.operators._gpu.settings import Tuning

__all__ = ["SUPPORTED", "HalfOperator", "TritonOperator", "Tuning", "half_bytes", "supported"]
