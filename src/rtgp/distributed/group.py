"""The ranks that share one problem, and the few operations they do together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rtgp.distributed.errors import DisagreementError, RankError, everywhere
from rtgp.distributed.rows import most_rows, own_rows
from rtgp.distributed.watch import Watch
from rtgp.errors import RTGPError

T = TypeVar("T")
# The newer name of the same operation, where it is there already.
_all_gather: Callable[..., object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class Group:
    """`size` processes of which this one is `rank`, `neighbours` of them on this machine.

    Every operation here is done by all of them, in the same order.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        process_group: dist.ProcessGroup | None,
        watch: Watch | None,
        neighbours: int = 1,
    ) -> None:
        self.rank, self.size, self.neighbours = rank, size, neighbours
        self._group, self._watch = process_group, watch
        self.device = torch.device("cpu")
        self._differed: Tensor | None = None
        self._left = False
        if process_group is not None and dist.get_backend(process_group) == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())

    @classmethod
    def alone(cls) -> Group:
        """One process, without torch.distributed."""
        return cls(0, 1, None, None)

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes files."""
        return self.rank == 0

    def own(self, n: int) -> slice:
        """The rows of an n x n matrix that are this rank's."""
        return own_rows(n, self.rank, self.size)

    def __deepcopy__(self, memo: object) -> Group:
        return self  # there is but one

    @property
    def exchanges(self) -> bool:
        """Whether anything is sent: in a group of one process, too, that was started as one of several could be."""
        if self._left:
            raise RankError(
                f"Rank {self.rank} of {self.size} has left its group and cannot exchange anything with the others. "
                "Call rtgp.distributed.stop() once, after all work that they share."
            )
        return self._group is not None

    def gather_rows(self, own: Tensor, n: int, stamp: Tensor | None = None) -> Tensor:
        """(n, ...) on every rank, from each rank's own rows (m, ...), in one all-gather.

        stamp: a number, () int64, that should be the same on every rank; it travels along, and ranks that differ in it
        are found out.
        """
        if stamp is None:
            return self.gather_with(own, n, own.new_empty(0, dtype=torch.int64))[0]
        whole, stamps = self.gather_with(own, n, stamp.reshape(1))
        self._compare(stamps[:, 0])
        return whole

    def gather_with(self, own: Tensor, n: int, words: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and each rank's words (size, k), of 8 bytes each, that travel along."""
        if not self.exchanges:
            return own, words[None]
        shape, width = own.shape[1:], math.prod(own.shape[1:])
        unit = 8 // own.element_size()
        length, extra = most_rows(n, self.size) * width, unit * words.numel()
        length += -length % unit  # the words begin at a multiple of 8 bytes
        sent = own.new_zeros(length + extra)
        sent[: own.numel()] = own.reshape(-1)
        sent[length:].view(words.dtype).copy_(words)
        got = sent.new_empty(self.size, length + extra)
        self._together("A product", lambda: _all_gather(got.view(-1), sent, group=self._group))
        result = own.new_empty(n, *shape)
        for rank in range(self.size):
            rows = own_rows(n, rank, self.size)
            count = (rows.stop - rows.start) * width
            result[rows] = got[rank, :count].reshape(-1, *shape)
        return result, got[:, length:].contiguous().view(words.dtype)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in one all-reduce; `tensor` may be overwritten."""
        if not self.exchanges:
            return tensor
        tensor = tensor.contiguous()
        self._together("A sum", lambda: dist.all_reduce(tensor, group=self._group))
        return tensor

    def sum_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums over ranks of several tensors of one dtype, in one all-reduce."""
        if not self.exchanges:
            return list(tensors)
        self.check_products()
        whole = self.sum(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        parts = torch.split(whole, [tensor.numel() for tensor in tensors])
        return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def take(self, own: Tensor, index: Tensor, n: int) -> Tensor:
        """Rows `index` (k,) of a matrix of n rows of which this rank has its own (m, w): (k, w) on every rank."""
        if not self.exchanges:
            return own[index]
        here, place = self.among_own(index, n)
        taken = own.new_zeros(len(index), own.shape[1])
        taken[here] = own[place]
        return self.sum(taken)

    def among_own(self, index: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Which of the rows `index` (k,) are this rank's (k,) bool, and where those stand among its own."""
        rows = self.own(n)
        here = (index >= rows.start) & (index < rows.stop)
        return here, index[here] - rows.start

    def check_products(self) -> None:
        """Raise if ranks were found to have multiplied different numbers; on a card that is looked at here only."""
        if self._differed is not None and bool(self._differed):
            self._differed.zero_()
            raise everywhere(
                DisagreementError(
                    "The ranks no longer work on the same numbers: the right-hand sides of a product, or the points of "
                    "a prediction, differ between them. Expected every rank to run the same program on the same data "
                    "and the same kind of hardware."
                )
            )

    def objects(self, value: T) -> list[T]:
        """Each rank's value, in order of rank; small ones, for they are pickled."""
        if not self.exchanges:
            return [value]
        found: list[Any] = [None] * self.size
        self._together("An exchange", lambda: dist.all_gather_object(found, value, group=self._group))
        return found

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns on the first rank, on every rank; an error of rtgp's is raised on every rank too."""
        if not self.exchanges:
            return make()
        outcome: list[Any] = [None, None]
        if self.first:
            try:
                outcome[0] = make()
            except RTGPError as error:
                outcome[1] = error
        self._together("A broadcast", lambda: dist.broadcast_object_list(outcome, 0, self._group, self.device))
        if outcome[1] is not None:
            raise everywhere(outcome[1])
        value: T = outcome[0]
        return value

    def together(self, make: Callable[[], T]) -> T:
        """What `make` returns on this rank; if it fails with an error of rtgp's on any, that error on every rank."""
        value: T | None = None
        problem = ""
        kind: type[RTGPError] = RTGPError
        try:
            value = make()
        except RTGPError as error:
            problem, kind = str(error), type(error)
        found = self.objects((problem, kind))
        if any(words for words, _ in found):
            if all(words == found[0][0] for words, _ in found):
                raise everywhere(found[0][1](found[0][0]))
            words = "; ".join(f"rank {rank}: {words}" for rank, (words, _) in enumerate(found) if words)
            raise everywhere(DisagreementError(f"Not every rank could go on. {words}"))
        return value  # type: ignore[return-value]  # no error here

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Raise, on every rank, if any of the named facts is not the same everywhere."""
        found = self.objects(dict(facts))
        differing = []
        for key in {key: None for each in found for key in each}:
            values = [each.get(key, "absent") for each in found]
            for rank, value in enumerate(values):
                if value != values[0]:
                    differing.append(f"{key} (rank 0: {values[0]}; rank {rank}: {value})")
                    break
        if differing:
            raise everywhere(
                DisagreementError(
                    f"The ranks differ in {', '.join(differing)}. Expected the same data, settings and versions on "
                    "every rank: give all of them the same command, files and environment."
                )
            )

    def close(self, words: str = "it has finished") -> None:
        """Tell the other ranks why this one leaves. The group cannot be used afterwards."""
        if self._watch is not None:
            self._watch.stop(words)
        # Whoever still holds this group must not keep the process group: its threads end when nobody does.
        self._group, self._left = None, self._left or self._group is not None

    def release(self) -> None:
        """After the process group is gone: give back the store as well, on the first rank as the last."""
        if self._watch is not None:
            self._watch.release()
            self._watch = None

    def _compare(self, stamps: Tensor) -> None:
        differed = (stamps != stamps[0]).any()
        if self._differed is None:
            self._differed = torch.zeros((), dtype=torch.bool, device=stamps.device)
        self._differed.logical_or_(differed)  # in place: it outlives the memory of a recorded run
        if stamps.device.type == "cpu":  # a card would have to be waited for
            self.check_products()

    def _together(self, name: str, operation: Callable[[], object]) -> None:
        if self._watch is not None:
            self._watch.enter(name)
        try:
            operation()
        except RuntimeError as error:
            words = self._watch.diagnosis() if self._watch is not None else str(error)
            raise RankError(
                f"{name} of all {self.size} ranks failed on rank {self.rank}. {words} "
                "The last checkpoint, where there is one, goes on by the same command."
            ) from error
        finally:
            if self._watch is not None:
                self._watch.leave()


def checksum(tensor: Tensor) -> Tensor:
    """A number, () int64, that changes with any bit of a tensor of floating-point numbers."""
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
    bits = tensor.detach().contiguous().reshape(-1).view(whole)
    return bits.sum(dtype=torch.int64)
