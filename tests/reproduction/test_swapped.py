"""The items must tell an unbiased method from the biased one in its place.

Every item takes its methods from one table. With "cg" under the name of "rr-cg", or "rff" under that of "ss-rff", the
same cells are run and judged again: the verdict must turn.
"""

from __future__ import annotations

import pytest

from reproduction import ITEMS, Setting
from reproduction.methods import METHODS
from reproduction.spec import key_of
from reproduction.specs import fig1

WITHOUT_ROULETTE = {**METHODS, "rr-cg": METHODS["cg"], "rr-cg-ours": lambda size, **_: METHODS["cg"](10)}
WITHOUT_SINGLE_SAMPLE = {**METHODS, "ss-rff": METHODS["rff"], "ss-rff-ours": lambda size, **_: METHODS["rff"](20)}


def rows_of(spec, cells, setting):
    return [{"cell": key_of(cell), **cell, **row} for cell in cells for row in spec.run(cell, setting)]


@pytest.fixture(scope="module")
def cells():
    """Fig. 1, smaller still: 120 points and fewer samples."""
    samples = {"rr-cg": 4000, "rr-cg-ours": 40}
    return [
        {**cell, "n": 120, "samples": samples.get(cell["method"], 500)}
        for cell in fig1.SPEC.cells("quick")
        if (cell["method"], cell["size"]) not in (("rff", 80),)
    ]


@pytest.fixture(scope="module")
def rows(cells, small_sets):
    return rows_of(fig1.SPEC, cells, Setting(data_dir=small_sets))


def test_as_it_is(rows):
    verdict = fig1.SPEC.judge(rows)
    assert verdict.status == "reproduced", verdict


@pytest.mark.parametrize(
    ("methods", "names"),
    [(WITHOUT_ROULETTE, ("rr-cg", "rr-cg-ours")), (WITHOUT_SINGLE_SAMPLE, ("ss-rff", "ss-rff-ours"))],
    ids=["CG for RR-CG", "RFF for SS-RFF"],
)
def test_swapped(rows, cells, small_sets, methods, names):
    changed = [cell for cell in cells if cell["method"] in names]
    kept = [row for row in rows if row["method"] not in names]
    swapped = kept + rows_of(fig1.SPEC, changed, Setting(data_dir=small_sets, methods=methods))
    verdict = fig1.SPEC.judge(swapped)
    assert verdict.status == "not reproduced"
    labels = {"rr-cg": "RR-CG", "rr-cg-ours": "RRCG()", "ss-rff": "SS-RFF", "ss-rff-ours": "SSRFF()"}
    assert {check.name for check in verdict.failed} == {f"{labels[name]} recovers both values" for name in names}


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("name", list(ITEMS))
def test_quick_version_passes(name, real_data):
    spec = ITEMS[name]
    verdict = spec.judge(rows_of(spec, spec.cells("quick"), Setting(size="quick", data_dir=real_data)))
    assert not verdict.failed, verdict


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("fig1", WITHOUT_ROULETTE),
        ("fig2", WITHOUT_ROULETTE),
        ("fig5", WITHOUT_ROULETTE),
        ("fig1", WITHOUT_SINGLE_SAMPLE),
        ("fig2", WITHOUT_SINGLE_SAMPLE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_quick_version_fails_when_swapped(name, methods, real_data):
    spec = ITEMS[name]
    setting = Setting(size="quick", data_dir=real_data, methods=methods)
    verdict = spec.judge(rows_of(spec, spec.cells("quick"), setting))
    assert verdict.status == "not reproduced", verdict
