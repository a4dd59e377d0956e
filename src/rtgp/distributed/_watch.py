"""Signs of life: a thread that tells the other ranks that this one lives, and says which of them does not.

Every rank counts its collective operations and writes that count, with a counter that goes up twice a second, to the
store that the process group was made with. A rank whose counter stands still is dead or stopped; one whose counter goes
up while it has not come to the operation that the others wait in is busy with something else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

_INTERVAL = 0.5  # seconds between two signs of life
_PATIENCE = 3.0  # without one before a rank counts as silent
_FAREWELL = 10.0  # seconds that the rank with the store waits for the others to leave before it
_POLL = 0.02
_KEY = "rtgp-life"


@dataclass(frozen=True)
class _Life:
    beats: int
    operations: int
    words: str  # why it has left; empty while it is there


class Watch:
    """on_silence(words) is called, in the thread, once an operation has lasted longer than `timeout` seconds.

    Parameters
    ----------
    store : Store
        Written to and read; server: kept until `release`, for on the first rank it may be the one that serves all.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: float,
        on_silence: Callable[[str], None],
        server: Store | None = None,
    ) -> None:
        self._store: Store | None = store
        self._server = server
        self._rank, self._size, self._timeout = rank, size, timeout
        self._on_silence = on_silence
        self._beats = self._operations = 0
        self._since: float | None = None  # when the operation that goes on began
        self._name = ""
        self._words = ""
        self._ended = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._live, name="rtgp-watch", daemon=True)
        self._thread.start()

    def enter(self, name: str) -> None:
        """An operation of all ranks begins."""
        self._operations += 1
        self._name, self._since = name, time.monotonic()

    def leave(self) -> None:
        self._since = None

    def stop(self, words: str = "it has finished") -> None:
        """No more signs of life; `words` tell the others why."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._words = words
            self._try_to_write()

    def release(self) -> None:
        """Give the store back, after `stop`. The first rank, which may hold it, stays until the others have left: they
        still tell it why they leave, and read there why others have."""
        store, self._store = self._store, None
        if store is not None and self._rank == 0:
            with suppress(RuntimeError):  # another program served the store, and is gone
                self._wait_for_others(store)
        self._server = None

    def _wait_for_others(self, store: Store) -> None:
        begin = time.monotonic()
        beats: dict[int, int] = {}
        moved = dict.fromkeys(range(1, self._size), begin)
        while moved and (now := time.monotonic()) < begin + _FAREWELL:
            for rank in list(moved):
                life = _read(store, rank)
                if beats.get(rank) != life.beats:
                    beats[rank], moved[rank] = life.beats, now
                if life.words or now - moved[rank] > _PATIENCE:
                    del moved[rank]
            if moved:
                time.sleep(_POLL)

    def diagnosis(self) -> str:
        """Which ranks are gone, silent or elsewhere, in words; takes a few seconds."""
        others, store = [rank for rank in range(self._size) if rank != self._rank], self._store
        if store is None:
            return "This rank has left the group."
        try:
            before = {rank: _read(store, rank) for rank in others}
            end = time.monotonic() + _PATIENCE
            while time.monotonic() < end:
                time.sleep(_INTERVAL)
                self._write()
            after = {rank: _read(store, rank) for rank in others}
        except RuntimeError:
            return "The store of the process group cannot be reached: rank 0, or the program that holds it, is gone."
        found = []
        for rank in others:
            life = after[rank]
            if life.words:
                found.append(f"rank {rank} has left: {life.words.rstrip('.')}")
            elif life.beats == before[rank].beats:
                found.append(f"rank {rank} gives no sign of life: it has died or is stopped")
            elif life.operations < self._operations:
                found.append(f"rank {rank} lives, but has not come to this operation")
        words = "; ".join(found) or "every rank lives: the network between them failed"
        return f"{words[0].upper()}{words[1:]}."

    def _live(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self._beats += 1
            self._try_to_write()
            since = self._since
            if since is not None and time.monotonic() - since > self._timeout:
                self._on_silence(f"{self._name} has taken more than {self._timeout:g} s. {self.diagnosis()}")
                return

    def _write(self) -> None:
        if self._store is None:
            return
        self._beats += 1
        self._store.set(f"{_KEY}/{self._rank}", f"{self._beats} {self._operations} {self._words}")

    def _try_to_write(self) -> None:
        try:
            self._write()
        except RuntimeError:
            return  # whoever holds the store is gone; the operations will tell


def _read(store: Store, rank: int) -> _Life:
    beats, operations, words = store.get(f"{_KEY}/{rank}").decode().split(" ", 2)
    return _Life(int(beats), int(operations), words)
