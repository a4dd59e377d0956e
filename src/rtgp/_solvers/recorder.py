"""Recording what is queued on a card, so that it can be queued again at the price of one launch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

from rtgp._ownership import collector_held_off

Work = Callable[[], None]


class Recording(Protocol):
    """Work that was recorded."""

    def replay(self) -> None:
        """Queue it again."""
        ...

    def release(self) -> None:
        """Free its memory, once nothing that was queued uses it."""
        ...


class Recorder(Protocol):
    """Makes recordings."""

    def record(self, work: Work) -> Recording:
        """Work as it is queued; nothing of it is executed. Any error leaves the device as it was."""
        ...


class CudaRecorder:
    """By CUDA graphs. Not by `torch.cuda.graph`, which begins by handing all cached memory back to the system."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self, work: Work) -> Recording:
        graph, stream = torch.cuda.CUDAGraph(), _stream(self._device, threading.get_ident())
        stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            # Whatever a collection frees on the card spoils the recording, and so would other threads' work in the
            # default mode.
            with collector_held_off(), torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    with suppress(RuntimeError):  # the recording is spoilt, and the stream must leave it
                        graph.capture_end()
                    raise
                graph.capture_end()
        except BaseException:
            with suppress(RuntimeError):
                graph.reset()
            with suppress(RuntimeError):
                torch.cuda.synchronize(self._device)
            raise
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return _CudaRecording(graph, self._device)


@functools.cache
def _stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    """One stream for all recordings of a thread.

    cuBLAS keeps a workspace for every stream that it has seen. It takes it here and not within a recording, of whose
    memory it would hold a part permanently.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        some = torch.zeros(8, 8, device=device)
        torch.mm(some, some)
    return stream


class _CudaRecording:
    def __init__(self, graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._graph, self._device = graph, device

    def replay(self) -> None:
        self._graph.replay()

    def release(self) -> None:
        torch.cuda.current_stream(self._device).synchronize()
        self._graph.reset()
