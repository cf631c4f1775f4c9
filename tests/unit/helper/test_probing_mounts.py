"""Which file systems are looked at, and how looks that hang are bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.helper import probe_base as probing_places
from lattice.helper.mounts import Mount
from lattice.helper.privilege import Kernel
from lattice.helper.probe_base import MOST_OF_USER, HeldSlot, ProbeSlots, TakenSlot, take
from lattice.helper.probing_mounts import MountProbe, mounts_to_probe

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 0:5 / /dev rw - devtmpfs udev rw
25 22 0:50 /export/home /home rw - nfs4 filer:/export/home rw,vers=4.2
26 22 0:50 /export/home/alice /home/alice rw - nfs4 filer:/export/home/alice rw
27 22 0:51 / /mnt/with\\040blank rw - fuse.sshfs alice@host: rw,user_id=3001
28 22 254:0 /etc/resolv.conf /etc/resolv.conf rw - ext4 /dev/vda1 rw
29 22 0:60 / /tmp rw - tmpfs tmpfs rw
30 29 0:61 / /tmp rw - tmpfs private rw
31 22 0:70 / /auto rw - autofs systemd-1 rw,fd=29
nonsense
"""


@pytest.mark.spec("DIAG-3")
def test_each_file_system_is_looked_at_once_and_shares_first() -> None:
    found = mounts_to_probe(MOUNTS)
    assert [(each.path, each.kind, each.source) for each in found] == [
        ("/home", "nfs4", "filer:/export/home"),
        ("/mnt/with blank", "fuse.sshfs", "alice@host:"),
        ("/", "ext4", "/dev/vda1"),
        ("/tmp", "tmpfs", "private"),
    ]


@given(st.text(max_size=300))
def test_garbage_is_no_mount(text: str) -> None:
    assert all(each.path.startswith("/") for each in mounts_to_probe(text))


@given(st.integers(0, len(MOUNTS)))
def test_a_page_that_was_cut_tells_of_fewer(cut: int) -> None:
    assert len(mounts_to_probe(MOUNTS[:cut])) <= 5


@pytest.fixture
def places(tmp_path: Path) -> ProbeSlots:
    return ProbeSlots(tmp_path / "places")


def mount(path: str, device: int = 1) -> Mount:
    return Mount(id=1, device=device, path=path, kind="x", source="y", whole=True, options=())


def test_a_folder_of_others_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ValueError, match="root alone"):
        ProbeSlots(tmp_path / "open")


def test_a_place_has_one_holder_and_says_since_when(places: ProbeSlots) -> None:
    first, second = places.open(7, "mount", 1), places.open(7, "mount", 1)
    assert isinstance(take(first), HeldSlot)
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)
    taken = take(second)
    assert isinstance(taken, TakenSlot)
    assert taken.since_s == pytest.approx(begun, abs=1.0)
    os.close(first)
    assert isinstance(take(second), HeldSlot)
    os.close(second)


def test_each_user_has_few_places_and_all_have_not_many(places: ProbeSlots) -> None:
    held = [places.open(7, "mount", number) for number in range(MOST_OF_USER)]
    for each in held:
        take(each)
    assert places.room(7) == 0
    assert places.room(8) == MOST_OF_USER
    others = [places.open(uid, "stack", number) for uid in (8, 9, 10, 11) for number in range(6)]
    for each in others:
        take(each)
    assert places.room(12) == 0
    for each in (*held, *others):
        os.close(each)
    assert places.room(7) == MOST_OF_USER


def test_old_places_are_forgotten(
    places: ProbeSlots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(places.open(7, "mount", 1))
    places.room(7)
    assert len(list((tmp_path / "places").iterdir())) == 1
    monkeypatch.setattr(probing_places, "_FORGET_S", -1.0)
    places.room(7)
    assert list((tmp_path / "places").iterdir()) == []


@pytest.fixture
def asked(places: ProbeSlots, tmp_path: Path) -> list[tuple[Mount, int]]:
    return [
        (mount(str(tmp_path), 1), places.open(7, "mount", 1)),
        (mount(str(tmp_path / "gone"), 2), places.open(7, "mount", 2)),
    ]


def _seconds_until_a_folder_answers(asked: list[tuple[Mount, int]]) -> float:
    (told,), whole = MountProbe(Kernel(), 60.0, 4).run(asked)
    assert told.answered_s is not None
    assert whole
    return told.answered_s


@pytest.mark.spec("DIAG-3")
def test_a_folder_answers_and_one_that_is_not_there_is_not_seen(
    asked: list[tuple[Mount, int]],
) -> None:
    assert _seconds_until_a_folder_answers(asked) >= 0


@pytest.mark.timing
@pytest.mark.spec("DIAG-3")
def test_a_folder_answers_within_a_second(asked: list[tuple[Mount, int]]) -> None:
    assert _seconds_until_a_folder_answers(asked) < 1.0


@pytest.mark.spec("DIAG-3")
def test_without_room_nothing_is_looked_at_and_that_is_said(
    asked: list[tuple[Mount, int]],
) -> None:
    assert MountProbe(Kernel(), 0.05, 0).run(asked) == ([], False)
    for _, place in asked:
        os.close(place)


def _seconds_that_a_held_place_is_waited_for(
    places: ProbeSlots, asked: list[tuple[Mount, int]]
) -> float:
    other = places.open(7, "mount", 1)
    take(other)
    looks, whole = MountProbe(Kernel(), 1.0, 4).run(asked)
    os.close(other)
    os.close(asked[0][1])
    # On a busy machine the folder that is not there may not have answered by then either.
    held = looks[0]
    assert (held.path, held.answered_s) == (asked[0][0].path, None)
    assert held.waited_s is not None
    assert whole
    return held.waited_s


@pytest.mark.spec("DIAG-3")
def test_a_place_that_another_look_holds_is_waited_for_and_then_told(
    places: ProbeSlots, asked: list[tuple[Mount, int]]
) -> None:
    assert _seconds_that_a_held_place_is_waited_for(places, asked) > 0


@pytest.mark.timing
@pytest.mark.spec("DIAG-3")
def test_a_place_that_another_look_holds_is_waited_for_a_tenth_to_three_seconds(
    places: ProbeSlots, asked: list[tuple[Mount, int]]
) -> None:
    assert 0.1 < _seconds_that_a_held_place_is_waited_for(places, asked) < 3.0


def _look_at_a_mount_that_has_not_answered_for_long(
    places: ProbeSlots, asked: list[tuple[Mount, int]]
) -> float:
    other = places.open(7, "mount", 1)
    take(other)
    os.pwrite(other, str(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 6 * 10**9).encode(), 0)
    begun = time.monotonic()
    # On a busy machine the folder that is not there may not have answered by then either.
    (told, *_), whole = MountProbe(Kernel(), 5.0, 4).run(asked)
    took_s = time.monotonic() - begun
    os.close(other)
    os.close(asked[0][1])
    assert told.path == asked[0][0].path
    assert told.waited_s is not None
    assert told.waited_s >= 6.0
    assert whole
    return took_s


@pytest.mark.spec("DIAG-3")
def test_what_has_not_answered_for_long_is_told(
    places: ProbeSlots, asked: list[tuple[Mount, int]]
) -> None:
    _look_at_a_mount_that_has_not_answered_for_long(places, asked)


@pytest.mark.timing
@pytest.mark.spec("DIAG-3")
def test_what_has_not_answered_for_long_is_told_within_half_of_the_time(
    places: ProbeSlots, asked: list[tuple[Mount, int]]
) -> None:
    assert _look_at_a_mount_that_has_not_answered_for_long(places, asked) < 2.5
