"""Import before anything that imports Triton: without a card its kernels then run in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

CUDA = torch.cuda.is_available()
INSTALLED = importlib.util.find_spec("triton") is not None

if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
needs_cuda = pytest.mark.skipif(not CUDA, reason="no CUDA device")

# Where a test of the fused kernels runs: in the interpreter or, under `-m gpu`, on a card.
CPU = pytest.param(
    "cpu", id="cpu", marks=pytest.mark.skipif(CUDA, reason="Triton's interpreter is for machines without a card")
)
GPU = pytest.param("cuda", id="cuda", marks=[pytest.mark.gpu, needs_cuda])


def _let_the_interpreter_count() -> None:
    """Triton 3.6's interpreter holds numbers as arrays of one element, which NumPy 2.4 no longer turns into int."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if INSTALLED and not CUDA:
    _let_the_interpreter_count()
