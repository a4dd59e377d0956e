"""Runs that are recorded and replayed, and what happens where they cannot be: with a recorder that only counts."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from rtgp._ownership import collector_held_off
from rtgp._preconditioners import LowRank
from rtgp._solvers import CGResult, Output, Recordings, conjugate_gradients, fused_iteration
from rtgp._solvers.recorder import CudaRecorder
from rtgp._solvers.replays import Replays
from rtgp.errors import ConvergenceError
from rtgp.truncation import fixed
from solvers import plain_recurrence


class Counting:
    """A recorder whose recordings do the work again. fails: from this recording on, counted from 0."""

    def __init__(self, fails: int | None = None) -> None:
        self.fails, self.records, self.replays, self.alive = fails, 0, 0, 0

    def record(self, work: Callable[[], None]) -> CountingRecording:
        self.records += 1
        if self.fails is not None and self.records > self.fails:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture\nmore of it")
        self.alive += 1
        return CountingRecording(self, work)


class CountingRecording:
    def __init__(self, owner: Counting, work: Callable[[], None]) -> None:
        self._owner, self._work, self._released = owner, work, False

    def replay(self) -> None:
        assert not self._released
        self._owner.replays += 1
        self._work()

    def release(self) -> None:
        assert not self._released
        self._released = True
        self._owner.alive -= 1


def test_work_is_recorded_once_and_replayed() -> None:
    recorder, done = Counting(), []
    replays = Replays(recorder)
    for number in (0, 1, 0, 1, 1):
        replays.run(number, functools.partial(done.append, number))
    assert done == [0, 1, 0, 1, 1]
    assert (recorder.records, recorder.replays, recorder.alive) == (2, 5, 2)
    for _ in range(2):
        replays.release()
        assert recorder.alive == 0
    replays.run(0, functools.partial(done.append, 2))
    assert (recorder.records, recorder.alive, done[-1]) == (3, 1, 2)


@pytest.mark.parametrize("fails", [0, 1])
def test_without_a_recording_the_work_is_done_all_the_same(fails: int, caplog: pytest.LogCaptureFixture) -> None:
    recorder, done = Counting(fails), []
    replays = Replays(recorder)
    with caplog.at_level(logging.INFO, "rtgp"):
        for number in (0, 1, 0, 1):
            replays.run(number, functools.partial(done.append, number))
    assert done == [0, 1, 0, 1]
    assert (recorder.records, recorder.alive) == (fails + 1, 0)  # never tried again, and nothing is kept
    (line,) = caplog.records
    assert "previous error during capture" in line.getMessage()
    assert "\n" not in line.getMessage()


def test_an_error_of_the_work_itself_is_raised() -> None:
    def broken() -> None:
        raise ValueError("on purpose")

    class Recorder:
        def record(self, work: Callable[[], None]) -> CountingRecording:
            work()
            raise AssertionError

    with pytest.raises(ValueError, match="on purpose"):
        Replays(Recorder()).run(0, broken)


def test_an_interrupt_while_recording_is_passed_on() -> None:
    class Recorder:
        def record(self, work: Callable[[], None]) -> CountingRecording:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Replays(Recorder()).run(0, lambda: None)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    plain_recurrence.install(monkeypatch)
    return monkeypatch


def with_recorder(monkeypatch: pytest.MonkeyPatch, recorder: Counting) -> None:
    """Every run takes this one, as on a card every run takes CUDA's."""
    monkeypatch.setattr(fused_iteration, "Replays", lambda given: Replays(recorder))


def solve(chunk: int, seed: int = 0, recordings: Recordings | None = None, limit: int | None = None) -> CGResult:
    return conjugate_gradients(
        MATMUL, PRECONDITIONER.whiten(rhs(seed)), fixed(None), [Output(0, None), Output(2, None)], PRECONDITIONER,
        tolerance=1e-9, chunk=chunk,
        recordings=recordings, max_iterations=limit,
    )  # fmt: skip


def rhs(seed: int) -> Tensor:
    return torch.randn(60, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


_FACTOR = torch.randn(60, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
_REST = torch.randn(60, 60, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / 8
_MATRIX = _FACTOR @ _FACTOR.T + _REST @ _REST.T + torch.diag(torch.linspace(1, 9, 60, dtype=torch.float64))
MATMUL = functools.partial(torch.matmul, _MATRIX)
PRECONDITIONER = LowRank(_FACTOR, torch.float64)


@pytest.mark.parametrize("fails", [None, 0, 1])
def test_the_same_solutions(plain: pytest.MonkeyPatch, fails: int | None) -> None:
    """Recorded, or not, or one half of it: the same numbers, in the first run and in those that use its recording."""
    recorder = Counting(fails)
    with_recorder(plain, recorder)
    with Recordings() as recordings:
        for seed in range(3):
            got = solve(4, seed, recordings)
            torch.testing.assert_close(got.solutions, torch.linalg.solve(_MATRIX, rhs(seed))[:, [0, 2]])
            assert got.iterations > 8  # several chunks
        assert (recorder.records, recorder.alive) == ((2, 2) if fails is None else (fails + 1, 0))
        assert (recorder.replays > 5) is (fails is None)
    assert recorder.alive == 0


def test_recordings_end_with_their_owner(plain: pytest.MonkeyPatch) -> None:
    recorder = Counting()
    with_recorder(plain, recorder)
    solve(4)  # nobody keeps them
    assert recorder.records == 2
    assert recorder.alive == 0
    with pytest.raises(ConvergenceError):
        solve(4, limit=9)
    assert recorder.records == 4
    assert recorder.alive == 0
    recordings = Recordings()
    solve(4, recordings=recordings)
    assert recorder.alive == 2
    conjugate_gradients(
        lambda v: _MATRIX @ v, rhs(0), fixed(None), [Output(0, None)], PRECONDITIONER, chunk=4, recordings=recordings
    )
    assert recorder.alive == 2  # those of the other system are gone
    recordings.release()
    recordings.release()
    assert recorder.alive == 0
    solve(4, recordings=recordings)
    assert recorder.alive == 2  # and it can be used again


class FakeGraph:
    """torch.cuda.CUDAGraph without a card: what is asked of it, in order."""

    def __init__(self, calls: list[str], spoilt: bool) -> None:
        self._calls, self._spoilt = calls, spoilt

    def capture_begin(self, capture_error_mode: str = "global") -> None:
        self._calls.append(f"begin {capture_error_mode}")

    def capture_end(self) -> None:
        self._calls.append("end")
        if self._spoilt:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def replay(self) -> None:
        self._calls.append("replay")

    def reset(self) -> None:
        self._calls.append("reset")


class FakeStream:
    def __init__(self, *device: object) -> None: ...

    def wait_stream(self, other: object) -> None: ...

    def synchronize(self) -> None: ...


def fake_card(monkeypatch: pytest.MonkeyPatch, spoilt: bool) -> list[str]:
    calls: list[str] = []

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        calls.append("onto the stream")
        try:
            yield
        finally:
            calls.append("off the stream")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(calls, spoilt))
    monkeypatch.setattr("rtgp._solvers.recorder._stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("synchronize"))
    return calls


def test_no_collection_while_cuda_records(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_card(monkeypatch, spoilt=False)
    assert gc.isenabled()
    recording = CudaRecorder(torch.device("cuda")).record(lambda: calls.append(f"collecting: {gc.isenabled()}"))
    assert gc.isenabled()
    recording.replay()
    recording.release()
    between = ["begin thread_local", "collecting: False", "end"]
    assert calls == ["onto the stream", *between, "off the stream", "replay", "reset"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("spoilt", [False, True], ids=["whole", "spoilt"])
def test_a_failed_recording_leaves_the_card_as_it_was(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], spoilt: bool
) -> None:
    calls = fake_card(monkeypatch, spoilt)

    def fails() -> None:
        raise error("on purpose")

    with pytest.raises(error, match="on purpose"):
        CudaRecorder(torch.device("cuda")).record(fails)
    assert calls == ["onto the stream", "begin thread_local", "end", "off the stream", "reset", "synchronize"]
    assert gc.isenabled()


def test_a_recording_that_cannot_be_ended_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_card(monkeypatch, spoilt=True)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        CudaRecorder(torch.device("cuda")).record(lambda: None)
    assert calls[-2:] == ["reset", "synchronize"]


def test_a_collector_that_was_off_stays_off() -> None:
    with collector_held_off(), collector_held_off():
        pass
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_held_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
