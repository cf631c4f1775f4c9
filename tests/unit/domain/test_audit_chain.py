"""The chain of the audit log: every single change is found, and the first bad entry is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.signatures import SigningKey
from lattice.domain.audit import (
    SENTENCES,
    TRUSTS,
    AuditAct,
    AuditEntry,
    AuditEvent,
    AuditOutcome,
    BadEntry,
    decode,
    encode,
    entry_of,
    sentence,
)
from lattice.domain.audit_chain import (
    ChainBroken,
    ChainPoint,
    ChainVerifier,
    Sign,
    genesis,
    hidden_line,
    make_batch,
    read_batch,
)

CLUSTER = "c0ffee"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY, OTHER = SigningKey.generate(), SigningKey.generate()


def signs(key: SigningKey) -> Sign:
    return lambda message: (key.name, key.sign(message))


def event(number: int, **more: str) -> AuditEvent:
    act = AuditAct.KEY_CHANGE if number == 1 else AuditAct.ATTACH_START
    detail = f"{TRUSTS} {KEY.public.hex()}" if number == 1 else f"number {number}"
    fields = {"sub": "s-alice", "user": "alice", "allocation": "42@1772366400", "detail": detail}
    return AuditEvent(event=f"e{number}", act=act, **{**fields, **more})


def entries(first: int, last: int) -> list[AuditEntry]:
    return [entry_of(event(n), n, NOW + timedelta(seconds=n)) for n in range(first, last + 1)]


def chain(sizes: Sequence[int], key: SigningKey = KEY) -> list[bytes]:
    """The lines of a whole chain with batches of these sizes."""
    point, lines = genesis(CLUSTER), []
    for size in sizes:
        batch = make_batch(
            CLUSTER, point, entries(point.sequence + 1, point.sequence + size), signs(key)
        )
        lines += batch.text.splitlines(keepends=True)
        point = batch.end
    return lines


def verify(lines: Sequence[bytes], anchors: dict[int, bytes] | None = None) -> ChainVerifier:
    verifier = ChainVerifier.from_beginning(CLUSTER, anchors)
    for line in lines:
        verifier.feed(line)
    verifier.finish()
    return verifier


def broken(lines: Sequence[bytes], anchors: dict[int, bytes] | None = None) -> ChainBroken:
    with pytest.raises(ChainBroken) as found:
        verify(lines, anchors)
    return found.value


def links(lines: Sequence[bytes]) -> dict[int, bytes]:
    content = [each for each in lines if not each.startswith(b"=")]
    return {n: bytes.fromhex(each[:64].decode()) for n, each in enumerate(content, 1)}


def at(lines: Sequence[bytes], sequence: int) -> int:
    """The index of the line of an entry."""
    found = [n for n, each in enumerate(lines) if not each.startswith(b"=")]
    return found[sequence - 1]


@pytest.mark.spec("AUDIT-3")
def test_an_untouched_chain_is_verified() -> None:
    lines = chain([1, 3, 2])
    verifier = verify(lines, links(lines))
    assert verifier.point.sequence == 6
    assert verifier.first_key == verifier.last_key == KEY.name


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_every_changed_bit_is_found_and_named(sizes: list[int], data: st.DataObject) -> None:
    lines = chain(sizes)
    index = data.draw(st.integers(0, len(lines) - 1))
    byte = data.draw(st.integers(0, len(lines[index]) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = bytearray(lines[index])
    changed[byte] ^= 1 << bit
    fault = broken([*lines[:index], bytes(changed), *lines[index + 1 :]])
    sealed = [n for n, each in enumerate(lines) if each.startswith(b"=")]
    if index in sealed:
        # The batch of the seal: its first entry is the first that nothing proves.
        before = sum(not each.startswith(b"=") for each in lines[:index])
        batch = next(n for n, end in enumerate(sealed) if end == index)
        assert before - sizes[batch] < fault.sequence <= before + 1
    else:
        number = sum(not each.startswith(b"=") for each in lines[: index + 1])
        assert fault.sequence == number


MUTANTS: dict[str, Callable[[list[bytes], int, int], list[bytes]]] = {
    "deleted": lambda lines, a, _: lines[:a] + lines[a + 1 :],
    "repeated": lambda lines, a, _: lines[: a + 1] + lines[a:],
    "swapped": lambda lines, a, b: [
        lines[b] if n == a else lines[a] if n == b else each for n, each in enumerate(lines)
    ],
    "cut": lambda lines, a, _: lines[:a],
}


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
@pytest.mark.parametrize("mutant", MUTANTS)
@given(data=st.data())
def test_every_deleted_swapped_or_cut_entry_is_found(mutant: str, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    lines = chain(sizes)
    first = data.draw(st.integers(1, sum(sizes) - 1))
    second = data.draw(st.integers(first + 1, sum(sizes)))
    changed = MUTANTS[mutant](list(lines), at(lines, first), at(lines, second))
    # A cut between two batches leaves a valid chain: only an anchor outside shows it.
    fault = broken(changed, links(lines))
    if mutant == "cut":
        # Without their seal nothing proves the entries before the cut in the same batch.
        starts = [sum(sizes[:n]) + 1 for n in range(len(sizes))]
        assert fault.sequence == max(each for each in starts if each <= first)
    else:
        assert fault.sequence == (first + 1 if mutant == "repeated" else first)


@pytest.mark.spec("AUDIT-3")
def test_entries_behind_the_last_seal_are_not_believed() -> None:
    lines = chain([2, 2, 2])
    assert broken(lines[:-1]).sequence == 5
    # A later seal covers all entries before it.
    assert verify([each for each in lines[:-1] if not each.startswith(b"=")] + lines[-1:])


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
def test_a_chain_signed_again_by_another_key_is_found() -> None:
    lines, other = chain([1, 2, 2]), chain([1, 2, 2], OTHER)
    fault = broken([*lines[: at(lines, 4)], *other[at(other, 4) :]])
    assert fault.sequence == 4
    assert "not trusted" in fault.problem


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
def test_a_rewritten_batch_with_new_links_is_found_by_its_seal() -> None:
    lines = chain([1, 3])
    forged = make_batch(
        CLUSTER,
        ChainPoint(1, links(lines)[1]),
        [entry_of(event(n, user="mallory"), n, NOW) for n in (2, 3, 4)],
        signs(OTHER),
    )
    *content, _ = forged.text.splitlines(keepends=True)
    fault = broken([*lines[:2], *content, lines[-1]])
    assert fault.sequence == 2
    assert "rewritten" in fault.problem


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
def test_a_chain_that_is_rolled_back_is_found_by_an_anchor() -> None:
    lines = chain([1, 2, 2])
    fault = broken(lines[: at(lines, 4)], links(lines))
    assert fault.sequence == 4
    assert "rolled back" in fault.problem


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
def test_a_chain_that_went_on_after_a_rollback_is_found_by_an_anchor() -> None:
    lines = chain([1, 2, 2])
    again = make_batch(
        CLUSTER,
        ChainPoint(3, links(lines)[3]),
        [entry_of(event(4, user="mallory"), 4, NOW)],
        signs(KEY),
    )
    fault = broken([*lines[: at(lines, 4)], again.text.splitlines(True)[0]], {4: links(lines)[4]})
    assert fault.sequence == 4


def _rotated(named: SigningKey, signer: SigningKey) -> list[bytes]:
    lines = chain([1, 1])
    change = AuditEvent(event="k", act=AuditAct.KEY_CHANGE, detail=f"{TRUSTS} {named.public.hex()}")
    batch = make_batch(
        CLUSTER, ChainPoint(2, links(lines)[2]), [entry_of(change, 3, NOW)], signs(signer)
    )
    after = make_batch(CLUSTER, batch.end, entries(4, 5), signs(OTHER))
    return [*lines, *batch.text.splitlines(True), *after.text.splitlines(True)]


@pytest.mark.spec("AUDIT-3")
def test_a_key_that_the_old_key_named_signs_from_then_on() -> None:
    assert verify(_rotated(OTHER, KEY)).last_key == OTHER.name


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
def test_a_key_that_names_itself_is_not_trusted() -> None:
    assert broken(_rotated(OTHER, OTHER)).sequence == 3


@pytest.mark.spec("AUDIT-3")
def test_an_entry_can_be_hidden_and_the_chain_still_verified() -> None:
    lines = chain([1, 3])
    hidden = [*lines[:2], hidden_line(lines[2]), hidden_line(hidden_line(lines[3])), *lines[4:]]
    assert verify(hidden).point == verify(lines).point
    upper = hidden[2][:66] + hidden[2][66:].upper()
    if upper != hidden[2]:
        assert broken([*hidden[:2], upper, *hidden[3:]]).sequence == 2


_TEXT = st.text(max_size=30)
# Hypothesis wants limits without a time zone.
_OLDEST = datetime(1970, 1, 1)  # noqa: DTZ001 - see above
_NEWEST = datetime(9000, 1, 1)  # noqa: DTZ001 - see above


@given(
    texts=st.tuples(_TEXT, _TEXT, _TEXT, st.text(max_size=900)),
    act=st.sampled_from(AuditAct),
    outcome=st.sampled_from(AuditOutcome),
    sequence=st.integers(1, 2**60),
    time=st.datetimes(min_value=_OLDEST, max_value=_NEWEST, timezones=st.just(UTC)),
)
def test_an_entry_has_one_encoding(
    texts: tuple[str, str, str, str],
    act: AuditAct,
    outcome: AuditOutcome,
    sequence: int,
    time: datetime,
) -> None:
    sub, user, node, detail = texts
    made = AuditEvent(
        event="e", act=act, outcome=outcome, sub=sub, user=user, node=node, detail=detail
    )
    entry = entry_of(made, sequence, time)
    line = encode(entry)
    assert line.isascii()
    assert b"\n" not in line
    assert decode(line) == entry
    assert entry_of(entry, sequence, time) == entry
    with pytest.raises(BadEntry):
        decode(line.replace(b",", b", ", 1))


def test_every_act_has_a_sentence() -> None:
    assert set(SENTENCES) == set(AuditAct)
    for act in AuditAct:
        made = event(2)
        entry = entry_of(AuditEvent(event="e", act=act, user="bob", allocation="42@1"), 2, NOW)
        assert "{" not in sentence(entry), made


def test_a_row_names_who_did_what() -> None:
    made = AuditEvent(
        event="e",
        act=AuditAct.ATTACH_START,
        outcome=AuditOutcome.REFUSED,
        user="alice",
        allocation="42@1772366400",
        node="n2",
        detail="session s1",
    )
    assert sentence(entry_of(made, 2, NOW)) == "alice attached to 42 on n2 (session s1), refused"


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_a_stored_batch_is_read_as_it_was_made(sizes: list[int]) -> None:
    point = genesis(CLUSTER)
    for size in sizes:
        members = entries(point.sequence + 1, point.sequence + size)
        batch = make_batch(CLUSTER, point, members, signs(KEY))
        assert read_batch(batch.text) == batch
        point = batch.end


def test_a_batch_that_is_not_whole_is_not_read() -> None:
    lines = chain([2])
    for text in (b"", lines[0], b"".join(lines[:-1]), lines[-1], b"".join([lines[0], lines[2]])):
        with pytest.raises(BadEntry):
            read_batch(text)
