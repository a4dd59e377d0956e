"""Work in parts on several threads: everything once, in order, the same bits on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gp_models import airports, make
from rtgp._kernels import read_covariance
from rtgp._preconditioners.nearest import nearest_earlier
from rtgp._preconditioners.sparse_factor import inverse_factor_rows
from rtgp._threads import PARTS, in_threads, parts_of, sum_of


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, PARTS - 1, PARTS, PARTS + 1, 1000])
def test_every_item_is_in_one_part(count: int) -> None:
    parts = parts_of(count)
    assert [k for part in parts for k in range(part.start, part.stop)] == list(range(count))
    assert len(parts) == min(count, PARTS)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_results_are_in_order_and_threads_are_given_back(threads: None, number: int) -> None:
    torch.set_num_threads(number)
    found = in_threads(lambda part: (part.start, torch.is_grad_enabled() and number > 1), 100, parallel=True)
    assert [start for start, _ in found] == [part.start for part in parts_of(100)]
    assert not any(graph for _, graph in found)
    assert torch.get_num_threads() == number
    assert in_threads(lambda part: (part.start, part.stop), 100, parallel=False) == [(0, 100)]


def test_an_error_of_one_part_is_raised_and_threads_are_given_back(threads: None) -> None:
    torch.set_num_threads(2)

    def work(part: slice) -> None:
        if part.start > 50:
            raise ValueError("this part")

    with pytest.raises(ValueError, match="this part"):
        in_threads(work, 100, parallel=True)
    assert torch.get_num_threads() == 2


def test_sums_do_not_depend_on_the_number_of_threads(threads: None) -> None:
    x, y = airports(300)
    model = make(x, y)
    form = read_covariance(model(x).lazy_covariance_matrix)
    pattern = nearest_earlier(form, torch.randperm(300, generator=torch.Generator().manual_seed(0)), 8)
    values = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        with torch.no_grad():
            values.append(inverse_factor_rows(form, torch.ones(300).double(), pattern)[1])
    assert all(torch.equal(one, values[0]) for one in values)
    parts = [torch.tensor(0.1), torch.tensor(0.2), torch.tensor(0.3)]
    assert float(sum_of(parts)) == pytest.approx(0.6)
