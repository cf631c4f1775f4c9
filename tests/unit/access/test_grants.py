"""Grants signed and checked: one act, one place, once."""

from __future__ import annotations

import pytest

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.base.signatures import SigningKey
from lattice.domain.grant import Act, BadGrant, Untimely
from lattice.domain.signedtime import BadTime
from tests.fakes.manual_clock import ManualClock


def _pair(clock: ManualClock) -> tuple[GrantSigner, GrantChecker]:
    signer = GrantSigner(SigningKey.generate(), clock)
    return signer, GrantChecker("n1", clock, signer.public_keys)


@pytest.mark.spec("AUTH-9")
def test_a_grant_tells_who_may_do_what_to_which_job() -> None:
    signer, checker = _pair(ManualClock())
    text = signer.issue(Act.ATTACH, "n1", subject="s-1", user="alice", job_id=7, started=5)
    grant = checker.check(text, Act.ATTACH)
    assert (grant.subject, grant.user, grant.job_id, grant.started) == ("s-1", "alice", 7, 5)


@pytest.mark.spec("AUTH-9")
def test_it_works_once() -> None:
    signer, checker = _pair(ManualClock())
    text = signer.issue(Act.ATTACH, "n1", subject="s")
    checker.check(text, Act.ATTACH)
    with pytest.raises(BadGrant, match="used before"):
        checker.check(text, Act.ATTACH)


@pytest.mark.spec("AUTH-9")
def test_a_refused_one_is_not_used_up() -> None:
    signer, checker = _pair(ManualClock())
    text = signer.issue(Act.ATTACH, "n1", subject="s", digest="0" * 64)
    with pytest.raises(BadGrant, match="another question"):
        checker.check(text, Act.ATTACH, digest="1" * 64)
    with pytest.raises(BadGrant, match="another question"):
        checker.check(text, Act.ATTACH)
    assert checker.check(text, Act.ATTACH, digest="0" * 64)


@pytest.mark.spec("AUTH-9")
def test_it_is_for_one_act_at_one_place_for_half_a_minute() -> None:
    clock = ManualClock()
    signer, checker = _pair(clock)
    with pytest.raises(BadGrant, match="not cancel"):
        checker.check(signer.issue(Act.ATTACH, "n1", subject="s"), Act.CANCEL)
    with pytest.raises(BadGrant, match="for n2"):
        checker.check(signer.issue(Act.ATTACH, "n2", subject="s"), Act.ATTACH)
    text = signer.issue(Act.ATTACH, "n1", subject="s")
    clock.advance(36)
    with pytest.raises(BadGrant, match="time"):
        checker.check(text, Act.ATTACH)


@pytest.mark.spec("AUTH-9")
def test_no_life_is_longer_than_the_longest() -> None:
    signer, checker = _pair(ManualClock())
    grant = checker.check(signer.issue(Act.ECHO, "n1", subject="s", ttl_s=10**6), Act.ECHO)
    assert grant.expires - grant.issued == 60


@pytest.mark.spec("AUTH-9")
def test_two_keys_hold_while_they_are_exchanged() -> None:
    clock = ManualClock()
    old, new = SigningKey.generate(), SigningKey.generate()
    before = GrantSigner(old, clock, [new.public])
    after = GrantSigner(new, clock, [old.public])
    checker = GrantChecker("n1", clock, before.public_keys)
    for signer in (before, after):
        checker.check(signer.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)
    checker.trust([new.public])
    assert checker.key_names == {new.name}
    with pytest.raises(BadGrant, match="not known"):
        checker.check(before.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)


@pytest.mark.spec("AUTH-9")
def test_a_forged_or_torn_one_is_refused() -> None:
    clock = ManualClock()
    signer, checker = _pair(clock)
    other = GrantSigner(SigningKey.generate(), clock)
    with pytest.raises(BadGrant, match="not known"):
        checker.check(other.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)
    key, payload, _ = signer.issue(Act.ECHO, "n1", subject="s").split(".")
    with pytest.raises(BadGrant, match="does not fit"):
        checker.check(f"{key}.{payload}.{'A' * 86}", Act.ECHO)


@pytest.mark.spec("AUTH-9")
def test_what_was_used_is_never_forgotten_while_it_could_still_be_valid() -> None:
    clock = ManualClock()
    signer = GrantSigner(SigningKey.generate(), clock)
    checker = GrantChecker("n1", clock, signer.public_keys, most_remembered=2)
    first = signer.issue(Act.ECHO, "n1", subject="s")
    checker.check(first, Act.ECHO)
    checker.check(signer.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)
    with pytest.raises(BadGrant, match="too many"):
        checker.check(signer.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)
    with pytest.raises(BadGrant, match="used before"):
        checker.check(first, Act.ECHO)
    clock.advance(200)
    assert checker.check(signer.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)


@pytest.mark.spec("AUTH-9")
def test_what_was_used_stays_used_when_the_clock_is_set_back() -> None:
    clock = ManualClock()
    signer = GrantSigner(SigningKey.generate(), clock)
    checker = GrantChecker("n1", clock, signer.public_keys, most_remembered=2)
    old = [signer.issue(Act.ECHO, "n1", subject="s") for _ in range(2)]
    for each in old:
        checker.check(each, Act.ECHO)
    clock.advance(200)
    checker.check(signer.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)
    clock.advance(-200)
    for each in old:
        with pytest.raises(BadGrant, match="used before"):
            checker.check(each, Act.ECHO)


@pytest.mark.spec("AUTH-9")
def test_one_out_of_its_time_is_told_apart_and_not_used_up() -> None:
    clock = ManualClock()
    signer, checker = _pair(clock)
    text = signer.issue(Act.ECHO, "n1", subject="s")
    for seconds in (-300, 600):
        clock.advance(seconds)
        with pytest.raises(Untimely):
            checker.check(text, Act.ECHO)
    with pytest.raises(BadGrant) as other:
        checker.check(text, Act.CANCEL)
    assert not isinstance(other.value, Untimely), "no clock would put that right"
    clock.advance(-300)
    with pytest.raises(Untimely):
        checker.check(text, Act.ECHO, since_s=int(clock.now().timestamp()) + 1)
    checker.check(text, Act.ECHO)


@pytest.mark.spec("AUTH-9")
def test_the_time_is_signed_for_one_place_with_a_mark_of_its_own() -> None:
    clock = ManualClock()
    signer, checker = _pair(clock)
    told = checker.read_time(signer.sign_time("n1", "0a" * 32))
    assert told.time_ms == int(clock.now().timestamp() * 1000)
    with pytest.raises(BadTime, match="for n2"):
        checker.read_time(signer.sign_time("n2", "0a" * 32))
    with pytest.raises(BadTime, match="does not fit"):
        checker.read_time(signer.issue(Act.ECHO, "n1", subject="s"))
    with pytest.raises(BadGrant, match="does not fit"):
        checker.check(signer.sign_time("n1", "0a" * 32), Act.ECHO)
