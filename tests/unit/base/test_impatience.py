"""Reading what may never answer: one that hangs costs its own key, and ends nobody's wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from lattice.base.impatience import ImpatientReader
from lattice.base.impatience_threads import Stuck, ThreadProgress
from tests.eventually import eventually

SHORT_S = 0.05


class Frozen:
    """Processes that hold their reader until they are thawed."""

    def __init__(self) -> None:
        self._thawed: dict[int, threading.Event] = {}
        self.now = 0.0
        self.reads: list[int] = []

    def freeze(self, *pids: int) -> None:
        self._thawed.update((pid, threading.Event()) for pid in pids)

    def thaw(self, *pids: int) -> None:
        for pid in pids or tuple(self._thawed):
            self._thawed.pop(pid).set()

    def read(self, key: str, progress: ThreadProgress) -> str:
        """Three processes a key: a0 is 970, a1 971, …"""
        first = 10 * ord(key)
        read = []
        for pid in range(first, first + 3):
            if pid in progress.skip:
                continue
            progress.reads(pid)
            self.reads.append(pid)
            if (frozen := self._thawed.get(pid)) is not None:
                frozen.wait()
            read.append(pid - first)
        return f"{key}{''.join(map(str, read))}"


A0, A1, A2, B0 = 970, 971, 972, 980


@pytest.fixture
def frozen() -> Iterator[Frozen]:
    made = Frozen()
    yield made
    made.thaw()


@pytest.fixture
def reader(frozen: Frozen) -> Iterator[ImpatientReader[str]]:
    made: ImpatientReader[str] = ImpatientReader("test", patience_s=SHORT_S)
    yield made
    frozen.thaw()
    eventually(lambda: made.stuck == 0)
    made.close()


def test_everything_is_read_in_one_thread_that_is_kept(
    frozen: Frozen, reader: ImpatientReader[str]
) -> None:
    threads = set()

    def read(key: str, progress: ThreadProgress) -> str:
        threads.add(threading.get_ident())
        return frozen.read(key, progress)

    for _ in range(3):
        assert reader.read_each("abc", read) == {"a": "a012", "b": "b012", "c": "c012"}
    assert len(threads) == 1
    assert reader.read_each((), frozen.read) == {}


@pytest.mark.threat("unreadable-process")
def test_a_process_that_hangs_costs_its_own_key_alone(
    frozen: Frozen, reader: ImpatientReader[str]
) -> None:
    frozen.freeze(B0)
    told = reader.read_each("abc", frozen.read)
    assert told == {"a": "a012", "b": Stuck(frozenset({B0})), "c": "c012"}
    assert reader.stuck == 1


def test_it_is_left_alone_and_the_others_of_its_key_are_read_after_a_rest(frozen: Frozen) -> None:
    reader = _reader(frozen)
    frozen.freeze(A1)
    assert reader.read_each("a", frozen.read) == {"a": Stuck(frozenset({A1}))}
    frozen.reads.clear()
    assert reader.read_each("ab", frozen.read)["a"] == Stuck(frozenset({A1})), "it rests"
    frozen.now += 2.0
    assert reader.read_each("ab", frozen.read) == {"a": "a02", "b": "b012"}
    assert A1 not in frozen.reads
    frozen.thaw()
    eventually(lambda: reader.stuck == 0)
    assert reader.read_each("ab", frozen.read) == {"a": "a012", "b": "b012"}
    reader.close()


def _reader(frozen: Frozen, **bounds: int) -> ImpatientReader[str]:
    """The time of rests is the test's; a hang is noticed at once."""

    def monotonic() -> float:
        frozen.now += 0.001
        return frozen.now

    return ImpatientReader("test", patience_s=0.02, monotonic=monotonic, **bounds)


@pytest.mark.threat("unreadable-process")
def test_only_so_many_threads_hang_for_one_key(frozen: Frozen) -> None:
    reader = _reader(frozen, most_a_key=2)
    frozen.freeze(A0, A1, A2)
    for _ in range(5):
        assert isinstance(reader.read_each("a", frozen.read)["a"], Stuck)
        frozen.now += 100.0
    assert reader.stuck == 2
    assert reader.read_each("b", frozen.read) == {"b": "b012"}
    frozen.thaw()
    eventually(lambda: reader.stuck == 0)
    assert reader.read_each("a", frozen.read) == {"a": "a012"}
    reader.close()


@pytest.mark.threat("unreadable-process")
def test_only_so_many_threads_hang_in_all(frozen: Frozen) -> None:
    reader = _reader(frozen, most=3)
    frozen.freeze(*(10 * ord(key) for key in "abcdef"))
    for _ in range(3):
        told = reader.read_each("abcdef", frozen.read)
        assert all(isinstance(each, Stuck) for each in told.values())
        assert list(told) == list("abcdef")
        frozen.now += 100.0
    assert reader.stuck == 3
    frozen.thaw()
    eventually(lambda: reader.stuck == 0)
    assert reader.read_each("af", frozen.read) == {"a": "a012", "f": "f012"}
    reader.close()


def test_a_key_that_hangs_again_and_again_rests_longer_each_time(frozen: Frozen) -> None:
    reader = _reader(frozen)
    rests = []
    for _ in range(4):
        frozen.freeze(A0)
        assert isinstance(reader.read_each("a", frozen.read)["a"], Stuck)
        frozen.thaw()
        eventually(lambda: reader.stuck == 0)
        began = frozen.now
        while isinstance(reader.read_each("a", frozen.read)["a"], Stuck):
            frozen.now += 0.5
        rests.append(frozen.now - began)
    assert rests == sorted(rests)
    assert rests[-1] > 4 * rests[0]
    reader.close()


def test_what_the_read_raises_is_raised(reader: ImpatientReader[str]) -> None:
    def read(key: str, _: ThreadProgress) -> str:
        raise ZeroDivisionError(key)

    with pytest.raises(ZeroDivisionError):
        reader.read_each("ab", read)
    assert reader.read_each("a", lambda key, _: key) == {"a": "a"}


async def test_one_key_in_an_event_loop_which_goes_on(
    frozen: Frozen, reader: ImpatientReader[str]
) -> None:
    assert await reader.read_one("a", frozen.read) == "a012"
    frozen.freeze(A0)
    hanging, other = await asyncio.gather(
        reader.read_one("a", frozen.read), reader.read_one("b", frozen.read)
    )
    assert (hanging, other) == (Stuck(frozenset({A0})), "b012")


async def test_a_caller_who_does_not_wait_any_more_leaves_a_thread_that_is_counted(
    frozen: Frozen,
) -> None:
    reader: ImpatientReader[str] = ImpatientReader("test", patience_s=600)
    frozen.freeze(A0)
    reading = asyncio.create_task(reader.read_one("a", frozen.read))
    while A0 not in frozen.reads:
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert reader.stuck == 1
    assert await reader.read_one("b", frozen.read) == "b012"
    frozen.thaw()
    eventually(lambda: reader.stuck == 0)
    reader.close()


_ENDING = """
import threading
from lattice.base.impatience import ImpatientReader
def read(key, progress):
    progress.reads(1)
    threading.Event().wait()
reader = ImpatientReader("test", patience_s=0.05)
print(reader.read_each([1], read))
"""


def test_a_thread_that_hangs_does_not_keep_python_from_ending() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _ENDING], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout == "{1: Stuck(pids=frozenset({1}))}\n"
