"""Preconditioned conjugate gradients as a series, one run for many right-hand sides and many truncations.

A^-1 B = sum_j gamma_j d_j (Eq. 3 of the paper). What is returned are weighted sums of those increments, the weights
coming from `rtgp.truncation`: plain CG, Russian roulette with any survival rule, or a run to the end differ in that
argument alone.

The residual lives in whitened coordinates, where it begins as F^-1 B, or as e for a probe F e; directions and solutions
live in the original ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtgp._solvers.basis import KrylovBasis
from rtgp._solvers.iteration import Chunk, Iteration, IterationLog, Whitening
from rtgp._solvers.recordings import Recordings
from rtgp._solvers.result import CGResult, CGStatus
from rtgp.errors import ConvergenceError, NotPositiveDefiniteError
from rtgp.operators._gpu.availability import usable
from rtgp.truncation import Weighting

# A column whose ratio sqrt(r^T P^-1 r / reference) is below this has reached the working precision: its series ends.
WORKING_PRECISION = {torch.float32: 1e-4, torch.float64: 1e-8}
_CHUNK = {"cuda": 4}
# Binary exponents beyond which squares of a column's entries leave the range of its dtype, with room to spare.
_EXTREME = {torch.float32: 30, torch.float64: 300}


@dataclass(frozen=True)
class Output:
    """One weighted sum to return: of which right-hand side, with the weights of which draw (None: all ones)."""

    column: int
    draw: int | None


def conjugate_gradients(
    matmul: Callable[[Tensor], Tensor],
    residual: Tensor,  # (n, r): F^-1 B
    weighting: Weighting,
    outputs: Sequence[Output],
    preconditioner: Whitening,
    *,
    groups: Sequence[slice] | None = None,
    reference: Mapping[int, float] | None = None,
    tolerance: float | None = None,
    keep_basis: slice | None = None,
    max_iterations: int | None = None,
    chunk: int | None = None,
    recordings: Recordings | None = None,
) -> CGResult:
    """Run until every draw of `weighting` has ended or every column has reached the working precision.

    Parameters
    ----------
    matmul : callable
        v (n, r) -> A v.
    residual : Tensor
        F^-1 B, (n, r).
    weighting : Weighting
        The weights of the increments.
    outputs : sequence of Output
        The weighted sums to return.
    preconditioner : Whitening
        P, by its two halves.
    groups : sequence of slice, optional
        The error proxy is the largest, over groups of columns, of the root mean ratio in the group.
    reference : mapping of int to float, optional
        What r^T P^-1 r of a column is measured against. By default its start.
    tolerance : float, optional
        Error ratio at which a column has converged. By default the working precision.
    keep_basis : slice, optional
        Columns whose Lanczos vectors are to be returned. All columns are then kept orthogonal to their earlier
        residuals, so that a run ends after at most n iterations however ill-conditioned the matrix.
    max_iterations : int, optional
        Iterations after which the run is given up.
    chunk : int, optional
        Iterations between two looks at the error proxy. By default 1 on a CPU and 4 on a GPU, which would wait for
        every look. Whether a run goes on is decided as if after every iteration: what is beyond its end is thrown away.
    recordings : Recordings, optional
        Where runs on a card are kept for the next call. By default nothing is kept.

    Returns
    -------
    CGResult
        The weighted sums, and everything the run showed.
    """
    if recordings is None:
        with Recordings() as own:
            return conjugate_gradients(
                matmul, residual, weighting, outputs, preconditioner, groups=groups, reference=reference,
                tolerance=tolerance, keep_basis=keep_basis, max_iterations=max_iterations, chunk=chunk, recordings=own,
            )  # fmt: skip
    n, r = residual.shape
    groups = [slice(0, r)] if groups is None else groups
    scale = _extreme_scale(residual)
    if scale is not None:
        residual = residual / scale.to(residual)
        reference = {k: value / float(scale[k]) ** 2 for k, value in (reference or {}).items()}
    limit = max(1000, n) if max_iterations is None else max_iterations
    precision = WORKING_PRECISION[residual.dtype] if tolerance is None else tolerance
    columns = torch.tensor([output.column for output in outputs], device=residual.device)
    basis = KrylovBasis(n, r, residual) if keep_basis is not None else None
    size = 1 if basis is not None else chunk or _CHUNK.get(residual.device.type, 1)

    run: Iteration
    if size > 1 and usable(residual.device):
        run = recordings.start(matmul, residual, preconditioner, precision, groups, reference or {}, size)
    else:
        run = Iteration(matmul, residual, preconditioner, precision, groups, reference or {}, basis)
    solutions = residual.new_zeros(n, len(outputs))
    tables: list[Tensor] = []  # of the iterations that count
    weights: list[tuple[float, ...]] = []
    proxy, active = run.first_proxy, run.first_active
    ahead: Chunk | None = None
    status = None
    while status is None:
        queued: Chunk | None = None
        log: IterationLog | None = None
        used = 0
        while used < size:
            if not active:
                status = CGStatus.CONVERGED
                break
            drawn = weighting.next(proxy)
            if drawn is None:
                status = CGStatus.TRUNCATED
                break
            if len(weights) == limit:
                raise ConvergenceError(
                    f"Conjugate gradients did not reach the working precision in {limit} iterations (error ratio "
                    f"{proxy:.1e}, wanted {precision:.1e}). The system is too ill-conditioned: use a larger noise, a "
                    f"preconditioner of higher rank{'' if residual.dtype == torch.float64 else ', or float64'}."
                )
            if queued is None or log is None:
                queued = ahead or run.advance(size)
                ahead = run.advance(size) if run.expects(len(weights) + 2 * size) else None
                log = queued.log()
            if not log.positive(used):
                remedy = "Add" if residual.dtype == torch.float64 else "Use float64, or add"
                raise NotPositiveDefiniteError(
                    f"The matrix is not positive definite in {residual.dtype} (iteration {len(weights) + 1} of "
                    f"conjugate gradients met a direction of no positive curvature). {remedy} noise or jitter to the "
                    "diagonal."
                )
            proxy, active = log.proxy(used), log.active(used)
            weights.append(drawn)
            used += 1
        if queued is not None and log is not None and used:
            tables.append(log.table[:used])
            factors = [_factors(log.gamma(j), w, outputs) for j, w in enumerate(weights[-used:])]
            # No waiting: the next chunk is already running.
            weighted = torch.tensor(factors, dtype=residual.dtype).to(
                residual.device, non_blocking=True
            )  # (used, outputs)
            solutions += (queued.direction[:used, :, columns] * weighted[:, None]).sum(0)
    run.ended(len(weights))

    vectors = None
    if basis is not None and keep_basis is not None:
        vectors = torch.stack([preconditioner.conditioned(q)[0] for q in basis.lanczos_vectors(keep_basis)])
    whole = IterationLog(torch.cat([IterationLog.nothing(r), *tables]))
    squares = torch.cat([run.first_squares[None], whole.squares])
    if scale is not None:
        solutions *= scale.to(solutions)[columns]
        squares = squares * scale.square()
    return CGResult(
        solutions=solutions,
        status=status,
        iterations=len(weights),
        gamma=whole.gammas,
        beta=whole.betas,
        squares=squares,
        weights=torch.tensor(weights, dtype=torch.float64).reshape(len(weights), weighting.draws),
        residual=proxy,
        frozen=r - active,
        truncations=tuple(weighting.truncations),
        basis=vectors,
    )


def _extreme_scale(residual: Tensor) -> Tensor | None:
    """(r,) powers of two that bring columns of an extreme size near 1; None where no column has one.

    The recurrence is linear, but its scalars are quadratic in the right-hand side: of a column of 1e-25 they underflow
    in float32, and d^T A d = 0 looks like a matrix that is not definite. A power of two changes no digit.
    """
    size = residual.detach().abs().amax(0).double().cpu()
    exponent = torch.frexp(size).exponent
    extreme = (size > 0) & torch.isfinite(size) & (exponent.abs() > _EXTREME[residual.dtype])
    if not bool(extreme.any()):
        return None
    return torch.where(extreme, torch.ldexp(torch.ones_like(size), exponent), 1.0)


def _factors(gamma: list[float], weights: tuple[float, ...], outputs: Sequence[Output]) -> list[float]:
    """By what an iteration's directions enter the outputs."""
    return [gamma[o.column] * (1.0 if o.draw is None else weights[o.draw]) for o in outputs]
