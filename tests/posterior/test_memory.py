"""Memory does not grow with the number of test points."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A process of its own: the peak of resident memory is then of this prediction alone.
PROGRAM = """
import resource, sys
import torch
sys.path.insert(0, "tests")
from gp_models import make
from rtgp.posterior import posterior
n, m, method, variance, what = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
generator = torch.Generator().manual_seed(0)
x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
new = torch.randn(m, 3, generator=generator, dtype=torch.float64)
model = make(x, x.sum(1).sin())
model.likelihood.noise = 0.1
torch.linalg.cholesky(torch.eye(64, dtype=torch.float64) * 2) @ torch.ones(64, 64, dtype=torch.float64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = posterior(model, model.likelihood, method=method, variance=variance)
for name in what.split(","):
    result = getattr(found, name)(new)
    assert result.shape == (m,) and bool(torch.isfinite(result).all())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak_mib(*arguments: object) -> float:
    """Resident memory above what the model and the new points take, in MiB."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]) / 1024


@pytest.mark.parametrize("method", ["cholesky", pytest.param("cg", marks=pytest.mark.slow)])
def test_five_times_the_points_take_no_more_memory(method):
    few, many = (peak_mib(300, m, method, "exact", "mean,variance") for m in (20_000, 100_000))
    assert many < few + 40  # 40 MiB: the allocator's moods and the result itself; the kernel matrix would be 183 more


@pytest.mark.slow
@pytest.mark.parametrize(
    "n, method, variance, what",
    [
        (300, "cholesky", "exact", "mean,variance"),
        (5_000, "cg", "lanczos", "mean"),
        (5_000, "cholesky", "lanczos", "variance"),
    ],
)
def test_a_million_points(n, method, variance, what):
    assert peak_mib(n, 1_000_000, method, variance, what) < 2048


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_exact_variances_from_five_thousand_points(method):
    """Two slabs of test points: every further one reuses the same memory."""
    assert peak_mib(5_000, 20_000 if method == "cholesky" else 3_000, method, "exact", "mean,variance") < 2048
