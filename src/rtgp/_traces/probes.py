"""Random probe vectors for traces and log-determinants.

Probes z of covariance C come with their duals C^-1 z: E[(C^-1 z)^T dA A^-1 z] = tr(A^-1 dA) for any C. What conjugate
gradients are given is F^-1 z, in the whitened coordinates of the preconditioner P = F F^T. Probes of covariance P are
F e with random signs e: there F^-1 z is e itself, the dual is F^-T e, and F e is never formed.
All numbers are drawn on the CPU in float64: a seed gives the same probes in every precision and on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rtgp._preconditioners import Preconditioner
from rtgp.errors import SettingError

ProbeKind = Literal["rademacher", "gaussian", "preconditioner"]
PROBE_KINDS: tuple[ProbeKind, ...] = ("rademacher", "gaussian", "preconditioner")

SEEDS = 2**62  # a seed that is drawn is below it


def draw_seed(generator: torch.Generator | None) -> int:
    """The seed of a stream of random numbers of its own."""
    return int(torch.randint(SEEDS, (), generator=generator))


@dataclass(frozen=True)
class Probes:
    """Of z with covariance C, in the working precision: F^-1 z and C^-1 z, (n, p) each."""

    whitened: Tensor
    dual: Tensor


def check_probe_kind(kind: str) -> None:
    if kind not in PROBE_KINDS:
        names = ", ".join(repr(name) for name in PROBE_KINDS)
        raise SettingError(f"The 'probe_kind' parameter must be one of {names}. Got {kind!r} instead.")


def random_signs(n: int, count: int, generator: torch.Generator | None, device: torch.device | str = "cpu") -> Tensor:
    """(n, count) float64; drawn on the CPU, made into numbers on the device."""
    return torch.randint(0, 2, (n, count), generator=generator).to(device).double().mul_(2.0).sub_(1.0)


def draw_probes(
    kind: ProbeKind,
    n: int,
    count: int,
    preconditioner: Preconditioner,
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Probes:
    """Draw probes: "rademacher", random signs, C = I; "gaussian", N(0, I); "preconditioner", C = P."""
    if kind == "gaussian":
        white = torch.randn(n, count, dtype=torch.float64, generator=generator).to(device)
    else:
        white = random_signs(n, count, generator, device)
    if kind != "preconditioner":
        return Probes(preconditioner.whiten(white).to(dtype), white.to(dtype))
    return Probes(white.to(dtype), preconditioner.whiten_transpose(white).to(dtype))


def every_direction(n: int, preconditioner: Preconditioner, dtype: torch.dtype, device: torch.device) -> Probes:
    """As many as points, the whitened directions themselves, of length n^1/2: their mean of e e^T is I without any
    randomness, so that what is a mean over probes is exact."""
    white = torch.eye(n, dtype=torch.float64, device=device).mul_(math.sqrt(n))
    return Probes(white.to(dtype), preconditioner.whiten_transpose(white).to(dtype))
