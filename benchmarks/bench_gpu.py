"""Kernel products, gradients and training steps on one card, beside GPyTorch and what the hardware allows.

Rows in `results/gpu.csv`: `milliseconds` is the median of the repeats; `peer` is what the same run measured for the
other way; `limit` the time below which the hardware cannot do it, and by what: the exponentials of n^2 (or, where each
serves twice, n^2 / 2) entries at 16 per clock and multiprocessor, the tensor cores' float16 products, or the bytes of
the stored half of K at the bandwidth of a copy measured in the same run.

    python benchmarks/bench_gpu.py --only products,steps,cholesky,million
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack

import bench_training_step as training_step
import gpytorch
import record
import torch

import rtgp
from rtgp._kernels.formulas import RBF
from rtgp.operators._gpu.gradient import gradient
from rtgp.operators._gpu.half import half_product, store
from rtgp.operators._gpu.points import half_bytes, prepare
from rtgp.operators._gpu.product import product, product_reference
from rtgp.operators._gpu.settings import Tuning
from rtgp.operators._gpu.symmetric import symmetric_product

NAME = "gpu"
EXPONENTIALS = 16  # per clock and multiprocessor (CUDA programming guide, compute capability 9.0)
TENSOR = 2048  # float16 multiply-adds per clock and multiprocessor


def timed(run: Callable[[], object], repeats: int = 20) -> float:
    """Median milliseconds by the card's own clock."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


class Card:
    """Its limits, as found."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(0)
        self.processors = properties.multi_processor_count
        self.clock = 1e3 * getattr(properties, "clock_rate", 1_980_000)  # Hz
        block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
        other = torch.empty_like(block)
        self.bandwidth = 2 * 2**30 / (timed(lambda: other.copy_(block)) * 1e-3)  # bytes read and written per second

    def limits(self, n: int, made: float, width: int, columns: int, stored: float) -> dict[str, float]:
        """Milliseconds: for exponentials; on the tensor cores (distances of `width` inner terms, three products with
        V); for bytes. made: how many entries of K are computed."""
        rate = self.processors * self.clock * 1e-3  # clocks in a millisecond
        return {
            "exp2": made / (EXPONENTIALS * rate),
            "tensor": (made * width + float(n) ** 2 * 3 * max(16, columns)) / (TENSOR * rate),
            "memory": stored / self.bandwidth * 1e3,
        }


def row(what: str, n: int, d: int, r: int, milliseconds: float, **more: object) -> dict[str, object]:
    columns = {"error": "", "peer": "", "peer_ms": "", "ratio": "", "limit": "", "limit_ms": "", "share_of_limit": ""}
    columns |= {"peak_gib": "", "iterations": ""}
    found = {"what": what, "n": n, "d": d, "r": r, "milliseconds": round(milliseconds, 3), **columns, **more}
    print(found, flush=True)
    return found


def points(n: int, d: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(n, d, generator=generator, dtype=torch.float64) * (1.5 / d**0.5)).cuda()


def in_blocks(z: torch.Tensor, v: torch.Tensor, block: int = 4096) -> torch.Tensor:
    """K v by torch, float32, K made and multiplied block by block."""
    z = z.float()
    return torch.cat([torch.exp(-0.5 * torch.cdist(part, z).square_()) @ v for part in z.split(block)])


def products(card: Card) -> list[dict[str, object]]:
    rows = []
    for n, d in ((278_000, 3), (25_600, 8), (9_600, 26), (40_709, 26)):
        z, r = points(n, d), 16
        v = torch.randn(n, r, generator=torch.Generator().manual_seed(1)).cuda()
        pair = prepare("rbf", z, None, Tuning().direct)
        some = torch.arange(0, n, max(1, n // 500))[:500].cuda()
        exact = product_reference(RBF, z[some], z, v)

        def error(got: torch.Tensor, some: torch.Tensor = some, exact: torch.Tensor = exact) -> str:
            return f"{float((got[some].double() - exact).norm() / exact.norm()):.1e}"

        peer = timed(lambda z=z, v=v: in_blocks(z, v), 5)
        few = 20 if n < 100_000 else 7
        width = pair.rows.width
        ways = {"fused product": (lambda p=pair, v=v: product(p, v), float(n) ** 2, 0.0)}
        ways["fused symmetric product"] = (lambda p=pair, v=v: symmetric_product(p, v), float(n) ** 2 / 2, 0.0)
        half = store(pair) if n < 100_000 else None
        if half is not None:
            ways["stored half product"] = (lambda h=half, v=v: half_product(h, v), 0.0, half_bytes(n))
        for what, (run, made, stored) in ways.items():
            limits = card.limits(n, made, width, r, stored)
            name = max(limits, key=lambda key: limits[key])
            took = timed(run, few)
            rows.append(
                row(
                    what, n, d, r, took, error=error(run()), peer="torch in blocks", peer_ms=round(peer, 2),
                    ratio=round(peer / took, 1), limit=name, limit_ms=round(limits[name], 3),
                    share_of_limit=round(limits[name] / took, 2),
                )
            )  # fmt: skip
        if half is not None:
            rows.append(row("storing half of K", n, d, 0, timed(lambda p=pair: store(p), 5)))
        u = torch.randn(n, r, generator=torch.Generator().manual_seed(2)).cuda()
        rows.append(row("fused gradient", n, d, r, timed(lambda p=pair, u=u, v=v: gradient(p, u, v), few)))
        del half
    return rows


METHODS = {
    "CG(100) step": rtgp.CG(100),
    "RRCG() step": rtgp.RRCG(),
    "RRCG.paper() step": rtgp.RRCG.paper(),
    "Cholesky step, float32": rtgp.Cholesky(),
    "Cholesky step, float64": rtgp.Cholesky(),
}


def one_step(
    what: str, n: int, d: int, repeats: int, method: object = None, noise: float | None = None
) -> tuple[float, float, object]:
    """Median milliseconds, peak GiB, and what the method says about its last run."""
    dtype = torch.float64 if what.endswith("float64") else torch.float32
    model = training_step.make_model(n, d, dtype).cuda()
    if noise is not None:
        model.likelihood.noise = noise
    (inputs,) = model.train_inputs
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if what.startswith("gpytorch"):
            for context in training_step.gpytorch_settings(what):
                stack.enter_context(context)
            mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        else:
            method = METHODS[what] if method is None else method
            generator = torch.Generator().manual_seed(0)
            mll = rtgp.MarginalLogLikelihood(model.likelihood, model, method, generator=generator)
        times = []
        for _ in range(repeats + 1):  # the first compiles
            model.zero_grad()
            torch.cuda.synchronize()
            began = time.perf_counter()
            (-mll(model(inputs), model.train_targets)).backward()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - began))
    kept = times[1:] or times
    return statistics.median(kept), torch.cuda.max_memory_allocated() / 2**30, getattr(mll, "last", None)


def steps() -> list[dict[str, object]]:
    rows = []
    for n, d in ((9_600, 26), (25_600, 8), (40_709, 26)):
        peer, peak, _ = one_step("gpytorch-cg", n, d, 4)
        rows.append(row("GPyTorch, CG(100) step", n, d, 12, peer, peak_gib=round(peak, 2)))
        for what in ("CG(100) step", "RRCG() step", "RRCG.paper() step"):
            took, peak, last = one_step(what, n, d, 12)
            rows.append(
                row(
                    what, n, d, 12, took, peer="GPyTorch, CG(100) step", peer_ms=round(peer, 1),
                    ratio=round(peer / took, 2), peak_gib=round(peak, 2), iterations=last.iterations,
                )
            )  # fmt: skip
    return rows


def cholesky() -> list[dict[str, object]]:
    rows = []
    # Beyond a condition number of 1e5 ours is in float64 whatever was asked for; with a large noise it is not.
    for n, noise in ((9_600, None), (25_600, None), (25_600, 0.5)):
        peer, peak, _ = one_step("gpytorch-cholesky", n, 8, 3, noise=noise)
        rows.append(row("GPyTorch, Cholesky step, float32", n, 8, 1, peer, peak_gib=round(peak, 2)))
        for what in ("Cholesky step, float32", "Cholesky step, float64"):
            took, peak, last = one_step(what, n, 8, 3, noise=noise)
            words = f"{what} (computed in {str(last.dtype).removeprefix('torch.')})"
            rows.append(
                row(
                    words, n, 8, 1, took, peer="GPyTorch, Cholesky step, float32", peer_ms=round(peer, 1),
                    ratio=round(peer / took, 2), peak_gib=round(peak, 2),
                )
            )  # fmt: skip
    return rows


def million() -> list[dict[str, object]]:
    """One step at n = 10^6: y, 6 probes and the log-determinant's, 8 columns."""
    method = rtgp.CG(20, probes=6)
    took, peak, last = one_step("CG(20) step", 1_000_000, 8, 0, method)
    return [row("CG(20) step", 1_000_000, 8, 8, took, peak_gib=round(peak, 2), iterations=last.iterations)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="products,steps,cholesky,million")
    wanted = parser.parse_args().only.split(",")
    parts = {"products": lambda: products(Card()), "steps": steps, "cholesky": cholesky, "million": million}
    for name in wanted:
        record.append(NAME, parts[name]())


if __name__ == "__main__":
    main()
