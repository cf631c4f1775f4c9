"""The folder of doors: who finds one, how many there are, what is cleared away."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from lattice.helper.sessions import HelperSessions, NoRoom

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # Longer than a socket's address may be.
    deep = tmp_path / ("x" * 100)
    deep.mkdir(mode=0o700)
    return deep / "sessions"


@pytest.mark.spec("ATTACH-4")
def test_a_door_is_found_by_user_and_session(folder: Path) -> None:
    sessions = HelperSessions(folder)
    door, place = sessions.claim(7, ONE)
    with door, sessions.connect(7, ONE) as visitor:
        assert door.accept()[0].close() is None
        assert visitor.recv(1) == b""
        for uid, session in ((8, ONE), (7, TWO)):
            with pytest.raises(OSError, match="No such file"):
                sessions.connect(uid, session)
    os.close(place)
    assert (folder / "7" / ONE).stat().st_mode & 0o077 == 0


def test_one_name_is_one_session(folder: Path) -> None:
    sessions = HelperSessions(folder)
    door, place = sessions.claim(7, ONE)
    with door, pytest.raises(NoRoom, match="exists already"):
        sessions.claim(7, ONE)
    # Its holder is gone without a word: nobody stands behind the door.
    again, other = sessions.claim(7, ONE)
    again.close()
    os.close(place)
    os.close(other)


@pytest.mark.threat("many-terminals")
def test_there_is_room_for_so_many(folder: Path) -> None:
    sessions = HelperSessions(folder, most=2, most_a_user=1)
    first, place = sessions.claim(7, ONE)
    with pytest.raises(NoRoom, match="You have 1 terminals on this node"):
        sessions.claim(7, TWO)
    second, other = sessions.claim(8, TWO)
    with pytest.raises(NoRoom, match="2 terminals are open on this node"):
        sessions.claim(9, THREE)
    first.close()
    third, another = sessions.claim(9, THREE)
    assert not (folder / "7" / ONE).exists()
    for door in (second, third):
        door.close()
    for each in (place, other, another):
        os.close(each)


def test_a_sweep_leaves_those_who_answer(folder: Path) -> None:
    sessions = HelperSessions(folder)
    lives, place = sessions.claim(7, ONE)
    dead, other = sessions.claim(7, TWO)
    dead.close()
    HelperSessions(folder).sweep()
    assert [each.name for each in (folder / "7").iterdir()] == [ONE]
    lives.close()
    os.close(place)
    os.close(other)


def test_a_folder_that_others_can_change_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "sessions"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(ValueError, match="closed to all others"):
        HelperSessions(open_to_all)
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(ValueError, match="writable by root alone"):
        HelperSessions(above / "sessions")


@pytest.mark.threat("many-terminals")
def test_a_user_has_sixteen_and_a_node_sixty_four(folder: Path) -> None:
    sessions = HelperSessions(folder)
    with ExitStack() as held:
        for number in range(64):
            door, place = sessions.claim(7 + number // 16, f"{number:032x}")
            held.callback(door.close)
            held.callback(os.close, place)
            if number == 15:
                with pytest.raises(NoRoom, match="You have 16 terminals on this node"):
                    sessions.claim(7, THREE)
        with pytest.raises(NoRoom, match="64 terminals are open on this node"):
            sessions.claim(99, THREE)
