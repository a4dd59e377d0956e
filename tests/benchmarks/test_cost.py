"""The model of costs against arithmetic by hand, and against runs of one and two ranks."""

from __future__ import annotations

import math

import plan
import pytest
from cost import H200, Cost, Link, Machine, Workload, cost, crossover
from typer.testing import CliRunner

from distributed import cases
from distributed.ranks import run
from rtgp.errors import SettingError

LINK = Link("test", 1e9, 1e-4)


def test_links() -> None:
    # A ring of 4: three messages of a quarter; a tree of 4: two levels up and two down.
    assert LINK.all_gather(4e9, 4) == pytest.approx(3 * (1.0 + 1e-4))
    assert LINK.all_reduce(4e9, 4) == pytest.approx(2 * 0.75 * 4.0 + 4e-4)


def test_one_card_does_what_was_measured_on_it() -> None:
    assert H200.product(278_000**2, 3, 16) == pytest.approx(0.047, rel=0.01)
    assert H200.product(25_600**2, 8, 16) == pytest.approx(0.64e-3, rel=0.01)
    assert H200.stored_product(40_700**2, 11) == pytest.approx(3.27e-3, rel=0.02)


def test_more_ranks_share_the_memory_and_the_work() -> None:
    work = Workload(1_000_000, 3, rank=500)
    one, two, many = (cost(work, H200, ranks) for ranks in (1, 2, 64))
    assert one.communication == 0.0
    assert two.compute == pytest.approx(one.compute / 2, rel=0.01)
    assert two.factor_bytes == pytest.approx(one.factor_bytes / 2, rel=0.01)
    assert many.communication > two.communication
    assert one.vector_bytes == many.vector_bytes == 14 * 4 * 12e6
    assert not one.stored
    assert cost(Workload(60_000, 30), H200, 1).stored  # many inputs: reading K is faster than computing it


def test_memory_limits_the_rank() -> None:
    found = cost(Workload(10_000_000, 10), H200, 16)
    assert found.fits
    assert found.rank < math.isqrt(2 * 10_000_000 * 12)
    assert not cost(Workload(10**9, 10), H200, 1).fits


def test_where_communication_dominates() -> None:
    work = Workload(1_000_000, 3)
    begins = crossover(work, H200)
    assert begins is not None
    before, there = cost(work, H200, begins // 2), cost(work, H200, begins)
    assert before.communication <= before.compute
    assert there.communication > there.compute


@pytest.mark.parametrize("bad", [{"n": 0}, {"d": -1}, {"steps": True}])
def test_a_workload_checks_itself(bad: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="positive integer"):
        Workload(**{"n": 10, "d": 2, **bad})


def test_the_program() -> None:
    asked = ["--points", "1e7", "--dim", "10", "--gpus", "64", "--gpu", "h200"]
    done = CliRunner().invoke(plan.app, asked)
    assert done.exit_code == 0, done.output
    assert "10,000,000, 10 inputs" in done.stdout
    assert "Simulated, not measured" in done.stdout
    asked[1] = "many"
    wrong = CliRunner().invoke(plan.app, asked)
    assert wrong.exit_code == 2
    assert "--points must be a whole number" in wrong.stderr


def predicted(n: int, ranks: int, pieces: dict[str, float]) -> Cost:
    """From the pieces alone: what a rank's product, a pass over a vector and the messages take."""
    r = cases.COST_PROBES + 2
    rows, block = -(-n // ranks), 4.0 * n * r
    stored, bandwidth = 4.0 * n * rows / pieces["product"], block / pieces["pass"]
    single = 2.0 * rows * cases.COST_RANK * r / pieces["factor"]
    machine = Machine("here", 1e18, 1.0, 0.0, 1.0, stored, bandwidth, 1e9, single, columns=r)
    link = Link("here", 1e30, pieces["gather"] / max(1, ranks - 1))
    return cost(Workload(n, 3, cases.COST_PROBES, rank=cases.COST_RANK), machine, ranks, link)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_it_predicts_measured_iterations(ranks: int, record_property) -> None:
    n = 6000
    pieces = run(ranks, cases.measured, n)[0]
    found = predicted(n, ranks, pieces)
    assert found.stored
    record_property("measured", pieces["iteration"])
    record_property("predicted", found.iteration)
    # Wide: on a machine whose cores are shared a rank waits for the other.
    assert 1 / 3 < found.iteration / pieces["iteration"] < 3.0
