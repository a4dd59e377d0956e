"""The ranks that share one problem, and the few operations they do together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rtgp.distributed._errors import DisagreementError, RankError, on_every_rank
from rtgp.distributed._watch import Watch
from rtgp.errors import RTGPError

T = TypeVar("T")
# The newer name of the same operation, where it is there already.
_all_gather: Callable[..., object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class Group:
    """The processes that share one problem, and the few operations that they do together.

    Every operation is done by all of them, in the same order.

    Parameters
    ----------
    rank : int
        Which of them this one is.
    size : int
        How many there are.
    process_group : torch.distributed.ProcessGroup or None
        The group of torch; None for one process without others.
    watch : Watch or None
        What notices a rank that is lost.
    neighbours : int
        How many of them are on this machine.

    Examples
    --------
    >>> import torch
    >>> from rtgp.distributed import Group
    >>> group = Group.alone()
    >>> group.rank, group.size, group.first, group.own(10)
    (0, 1, True, slice(0, 10, None))
    >>> group.sum(torch.ones(2))
    tensor([1., 1.])
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
        """One process, without torch.distributed.

        Returns
        -------
        Group
            A group of one.
        """
        return cls(0, 1, None, None)

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes files."""
        return self.rank == 0

    def own(self, n: int) -> slice:
        """The rows of an n x n matrix that are this rank's.

        Parameters
        ----------
        n : int
            The number of rows.

        Returns
        -------
        slice
            Its own rows.
        """
        return own_rows(n, self.rank, self.size)

    def __deepcopy__(self, memo: object) -> Group:
        return self  # there is but one

    @property
    def exchanges(self) -> bool:
        """Whether anything is sent. That is so in a group of one process too, if it was started like one of several."""
        if self._left:
            raise RankError(
                f"Rank {self.rank} of {self.size} has left its group and cannot exchange anything with the others. "
                "Call rtgp.distributed.stop() once, after all work that they share."
            )
        return self._group is not None

    def gather_rows(self, own: Tensor, n: int, stamp: Tensor | None = None) -> Tensor:
        """All rows on every rank, in one all-gather.

        Parameters
        ----------
        own : Tensor
            This rank's own rows, (m, ...).
        n : int
            The number of all rows.
        stamp : Tensor, optional
            A number, () int64, that should be the same on every rank. It travels along, and ranks that differ in it are
            found out.

        Returns
        -------
        Tensor
            (n, ...).
        """
        if stamp is None:
            return self.gather_with(own, n, own.new_empty(0, dtype=torch.int64))[0]
        whole, stamps = self.gather_with(own, n, stamp.reshape(1))
        self._compare(stamps[:, 0])
        return whole

    def gather_with(self, own: Tensor, n: int, words: Tensor) -> tuple[Tensor, Tensor]:
        """All rows on every rank, with a few words of each rank that travel along.

        Parameters
        ----------
        own : Tensor
            This rank's own rows, (m, ...).
        n : int
            The number of all rows.
        words : Tensor
            Numbers of 8 bytes each, (k,).

        Returns
        -------
        rows : Tensor
            (n, ...).
        words : Tensor
            Those of each rank, (size, k).
        """
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
        """The sum over ranks, in one all-reduce.

        Parameters
        ----------
        tensor : Tensor
            This rank's part. It may be overwritten.

        Returns
        -------
        Tensor
            The sum.
        """
        if not self.exchanges:
            return tensor
        tensor = tensor.contiguous()
        self._together("A sum", lambda: dist.all_reduce(tensor, group=self._group))
        return tensor

    def sum_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums over ranks of several tensors of one dtype, in one all-reduce.

        Parameters
        ----------
        tensors : sequence of Tensor
            This rank's parts.

        Returns
        -------
        list of Tensor
            The sums.
        """
        if not self.exchanges:
            return list(tensors)
        self.check_products()
        whole = self.sum(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        parts = torch.split(whole, [tensor.numel() for tensor in tensors])
        return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def take(self, own: Tensor, index: Tensor, n: int) -> Tensor:
        """Some rows of a matrix whose rows are divided among the ranks.

        Parameters
        ----------
        own : Tensor
            This rank's own rows, (m, w).
        index : Tensor
            The wanted rows, (k,).
        n : int
            The number of all rows.

        Returns
        -------
        Tensor
            (k, w) on every rank.
        """
        if not self.exchanges:
            return own[index]
        here, place = self.among_own(index, n)
        taken = own.new_zeros(len(index), own.shape[1])
        taken[here] = own[place]
        return self.sum(taken)

    def among_own(self, index: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Which of some rows are this rank's.

        Parameters
        ----------
        index : Tensor
            The rows, (k,).
        n : int
            The number of all rows.

        Returns
        -------
        here : Tensor
            Whether each is this rank's, (k,) bool.
        place : Tensor
            Where those stand among its own.
        """
        rows = self.own(n)
        here = (index >= rows.start) & (index < rows.stop)
        return here, index[here] - rows.start

    def check_products(self) -> None:
        """Raise an error if ranks were found to have multiplied different numbers.

        On a card that is looked at here only.

        Raises
        ------
        DisagreementError
            If they have.
        """
        if self._differed is not None and bool(self._differed):
            self._differed.zero_()
            raise on_every_rank(
                DisagreementError(
                    "The ranks no longer work on the same numbers: the right-hand sides of a product, or the points of "
                    "a prediction, differ between them. Expected every rank to run the same program on the same data "
                    "and the same kind of hardware."
                )
            )

    def objects(self, value: T) -> list[T]:
        """Each rank's value. Small ones, for they are pickled.

        Parameters
        ----------
        value : object
            This rank's.

        Returns
        -------
        list
            In order of rank.
        """
        if not self.exchanges:
            return [value]
        found: list[Any] = [None] * self.size
        self._together("An exchange", lambda: dist.all_gather_object(found, value, group=self._group))
        return found

    def from_first(self, make: Callable[[], T]) -> T:
        """What a function returns on the first rank, on every rank.

        Parameters
        ----------
        make : callable
            A function without arguments. An error of rtgp's is raised on every rank too.

        Returns
        -------
        object
            The first rank's value.
        """
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
            raise on_every_rank(outcome[1])
        value: T = outcome[0]
        return value

    def together(self, make: Callable[[], T]) -> T:
        """What a function returns on this rank.

        If it fails with an error of rtgp's on any rank, that error is raised on every rank.

        Parameters
        ----------
        make : callable
            A function without arguments.

        Returns
        -------
        object
            This rank's value.
        """
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
                raise on_every_rank(found[0][1](found[0][0]))
            words = "; ".join(f"rank {rank}: {words}" for rank, (words, _) in enumerate(found) if words)
            raise on_every_rank(DisagreementError(f"Not every rank could go on. {words}"))
        return value  # type: ignore[return-value]  # no error here

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Raise an error, on every rank, if any of the named facts is not the same everywhere.

        Parameters
        ----------
        facts : mapping of str to str
            Facts by their names.

        Raises
        ------
        DisagreementError
            If one differs.
        """
        found = self.objects(dict(facts))
        differing = []
        for key in {key: None for each in found for key in each}:
            values = [each.get(key, "absent") for each in found]
            for rank, value in enumerate(values):
                if value != values[0]:
                    differing.append(f"{key} (rank 0: {values[0]}; rank {rank}: {value})")
                    break
        if differing:
            raise on_every_rank(
                DisagreementError(
                    f"The ranks differ in {', '.join(differing)}. Expected the same data, settings and versions on "
                    "every rank: give all of them the same command, files and environment."
                )
            )

    def close(self, words: str = "it has finished") -> None:
        """Tell the other ranks why this one leaves. The group cannot be used afterwards.

        Parameters
        ----------
        words : str
            The reason.
        """
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
    """A number that changes with any bit of a tensor of floating-point numbers.

    Parameters
    ----------
    tensor : Tensor
        The numbers.

    Returns
    -------
    Tensor
        () int64.

    Examples
    --------
    >>> import torch
    >>> from rtgp.distributed import checksum
    >>> bool(checksum(torch.tensor([1.0])) == checksum(torch.tensor([1.0 + 1e-6])))
    False
    """
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
    bits = tensor.detach().contiguous().reshape(-1).view(whole)
    return bits.sum(dtype=torch.int64)


def own_rows(n: int, rank: int, size: int) -> slice:
    """The block of one rank: all blocks together are [0, n), and none is more than one row longer than another."""
    return slice(rank * n // size, (rank + 1) * n // size)


def most_rows(n: int, size: int) -> int:
    """Of the longest block."""
    return -(-n // size)
