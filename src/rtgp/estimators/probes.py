"""Random probe vectors for traces and log-determinants.

Probes z of covariance C come with their duals C^-1 z: E[(C^-1 z)^T dA A^-1 z] = tr(A^-1 dA) for any C.
All numbers are drawn on the CPU in float64: a seed gives the same probes in every precision and on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from rtgp.errors import SettingError
from rtgp.solvers import Preconditioner

ProbeKind = Literal["rademacher", "gaussian", "preconditioner"]
PROBE_KINDS: tuple[ProbeKind, ...] = ("rademacher", "gaussian", "preconditioner")


class ProbeSource(Preconditioner, Protocol):
    """A preconditioner that can also colour white noise."""

    def sqrt_matmul(self, v: Tensor) -> Tensor: ...

    def logdet(self) -> Tensor: ...


@dataclass(frozen=True)
class Probes:
    """z (n, p) of covariance C and the duals C^-1 z (n, p), both in the working precision."""

    z: Tensor
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
    preconditioner: ProbeSource,
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Probes:
    """rademacher: random signs, C = I. gaussian: N(0, I). preconditioner: C = P, from P^(1/2) times random signs."""
    if kind == "gaussian":
        white = torch.randn(n, count, dtype=torch.float64, generator=generator).to(device)
    else:
        white = random_signs(n, count, generator, device)
    if kind != "preconditioner":
        z = white.to(dtype)
        return Probes(z, z)
    coloured = preconditioner.sqrt_matmul(white)
    dual, _ = preconditioner.solve(coloured)
    return Probes(coloured.to(dtype), dual.to(dtype))
