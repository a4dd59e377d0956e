"""Joining the others: what is refused before a message is sent, and errors of one rank that become errors of all."""

from __future__ import annotations

import pytest

from distributed import cases
from distributed.ranks import outcomes, run
from rtgp import distributed
from rtgp.distributed import Group
from rtgp.errors import InputError, SettingError

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_a_program_that_torchrun_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert not distributed.launched()
    assert not distributed.active()
    with pytest.raises(
        SettingError, match=r"Expected the environment variables RANK, .* Start the program by torchrun"
    ):
        distributed.start()
    with pytest.raises(SettingError, match="None has been made: start the program by torchrun"):
        distributed.world()
    distributed.stop()  # nothing to leave


@pytest.mark.parametrize(
    ("backend", "timeout", "words"),
    [
        ("gloo", 0.5, "'timeout' parameter must be a number of seconds from 1. Got 0.5"),
        ("gloo", True, "Got True"),
        ("gloo", "long", "Got 'long'"),
        ("mpi", 5.0, "'backend' parameter must be 'nccl' or 'gloo'. Got 'mpi'"),
    ],
)
def test_settings_are_refused_before_anything_is_joined(
    backend: str, timeout: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert distributed.launched()
    with pytest.raises(SettingError, match=words):
        distributed.start(backend, timeout)
    assert not distributed.active()


def test_one_process_alone_is_a_group() -> None:
    group = Group.alone()
    assert (group.rank, group.size, group.first) == (0, 1, True)
    assert group.objects("word") == ["word"]
    assert group.from_first(lambda: 3) == group.together(lambda: 3) == 3
    group.check_same({"seed": "0"})
    group.close()

    def fail() -> None:
        raise InputError("no such file")

    for call in (group.from_first, group.together):
        with pytest.raises(InputError, match="no such file"):
            call(fail)


def test_what_the_first_rank_makes_is_everybodys() -> None:
    assert run(2, cases.from_the_first, "") == [("rank 0", True), ("rank 0", True)]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("first", "InputError: made by rank 0"),
        ("all", "InputError: the same everywhere"),
        ("last", "DisagreementError: Not every rank could go on. rank 1: only rank 1"),
    ],
)
def test_an_error_of_one_rank_is_raised_by_all(what: str, words: str) -> None:
    for good, said in outcomes(2, cases.from_the_first, what):
        assert not good
        assert said.startswith(words)
