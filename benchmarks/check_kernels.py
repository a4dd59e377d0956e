"""Every fused kernel at odd sizes, against float64: to be run under `compute-sanitizer`, which watches memory accesses.

compute-sanitizer --tool memcheck python benchmarks/check_kernels.py
"""

from __future__ import annotations

import torch

from rtgp._kernels.formulas import MATERN, RBF
from rtgp.operators._gpu.gradient import gradient, gradient_reference
from rtgp.operators._gpu.half import half_product, store
from rtgp.operators._gpu.points import prepare
from rtgp.operators._gpu.product import product, product_reference
from rtgp.operators._gpu.stored import stored_product
from rtgp.operators._gpu.symmetric import symmetric_product


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm().clamp_min(1e-300))


def main() -> None:
    worst: dict[str, float] = {}
    cases = 0
    for formula in (RBF, MATERN[1.5]):
        for n in (1, 17, 1023):
            for d in (1, 3, 26):
                generator = torch.Generator().manual_seed(n + d)
                z = (torch.randn(n, d, generator=generator, dtype=torch.float64) / d**0.5).cuda()
                z = z - z.mean(0)
                pair = prepare(formula.name, z, None, 4)
                half, full = store(pair), formula.value((z[:, None] - z[None]).square().sum(-1)).float()
                for r in (1, 11):
                    v = torch.randn(n, r, generator=generator).cuda()
                    u = torch.randn(n, r, generator=generator).cuda()
                    wanted = product_reference(formula, z, z, v)
                    errors = {
                        "product": error(product(pair, v), wanted),
                        "wide": error(product(pair, v, wide=True), wanted),
                        "symmetric": error(symmetric_product(pair, v), wanted),
                        "half": error(half_product(half, v), wanted),
                        "stored": error(stored_product(full, v, 1.0), wanted),
                        # A single point has no gradient: measured against 1.
                        "gradient": float(
                            (gradient(pair, u, v)[1] - gradient_reference(formula, z, u, v)[1]).norm()
                            / gradient_reference(formula, z, u, v)[1].norm().clamp_min(1.0)
                        ),
                    }
                    cases += 1
                    worst = {name: max(worst.get(name, 0.0), value) for name, value in errors.items()}
    print(cases, "cases; largest relative errors:", {name: f"{value:.1e}" for name, value in worst.items()})


if __name__ == "__main__":
    main()
