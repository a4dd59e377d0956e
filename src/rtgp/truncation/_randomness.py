"""The only source of random numbers in this package."""

from __future__ import annotations

import torch


def uniforms(count: int, generator: torch.Generator | None = None) -> list[float]:
    """Independent uniform numbers in (0, 1], in float64.

    0 is excluded, so that a survival probability of 0 is never survived, and 1 is included, so that a survival
    probability of 1 always is. The smallest value is 2^-53: float32 would stop at 2^-24 and never reach the far tail.

    Parameters
    ----------
    count : int
        How many.
    generator : torch.Generator, optional
        The source of random numbers. By default torch's own generator.

    Returns
    -------
    list of float
        The numbers.

    Examples
    --------
    >>> import torch
    >>> from rtgp.truncation import uniforms
    >>> all(0 < u <= 1 for u in uniforms(5, torch.Generator().manual_seed(0)))
    True
    """
    device = "cpu" if generator is None else generator.device
    draw = torch.rand(count, generator=generator, dtype=torch.float64, device=device)  # in [0, 1)
    return [1.0 - u for u in draw.tolist()]
