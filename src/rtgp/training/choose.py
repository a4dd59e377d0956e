"""Which method "auto" takes, and why: a function of n, d and the kind of device, never of a timing."""

from __future__ import annotations

import torch

from rtgp.methods import RRCG, Cholesky, Method

# Where the whole training by Cholesky and L-BFGS (60 evaluations) takes as long as by RR-CG and Adam (150 steps):
# on 2 CPU cores between 1500 (elevators) and 4000 (pol); on a GPU Cholesky holds out longer.
_CHOLESKY_UP_TO = {"cpu": 3000, "cuda": 8000}
_CHEAP_INPUTS = 100  # beyond it the kernel's entries cost both methods more than the algebra does


def choose_method(n: int, d: int, device: torch.device | str = "cpu") -> tuple[Method, str]:
    """The method for n points with d inputs on a device, and the reason in words."""
    kind = torch.device(device).type
    limit = _CHOLESKY_UP_TO.get(kind, _CHOLESKY_UP_TO["cuda"])
    # Both methods evaluate n^2 d entries in a step; Cholesky with L-BFGS takes fewer steps.
    limit = round(limit * max(1.0, d / _CHEAP_INPUTS) ** 0.5)
    if n <= limit:
        return Cholesky(), f"n = {n} is at most {limit}, up to which Cholesky is the cheaper on {kind} for d = {d}"
    return RRCG(), f"n = {n} is above {limit}, beyond which RR-CG is the cheaper on {kind} for d = {d}"
