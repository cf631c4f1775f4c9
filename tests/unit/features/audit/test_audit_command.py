"""`lattice audit verify`: what it says of recordings, and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lattice.base.clock import SystemClock
from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.base.signatures import SigningKey
from lattice.domain.audit_bundle import first_line, last_line
from lattice.domain.recording_proof import DamagedRecording
from lattice.features.audit.command import AUDIT
from lattice.features.audit.model import AuditVerdict
from tests.fakes.audit import CLUSTER, audit_replica
from tests.fakes.finished_recordings import FinishedRecording, finished_recording
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.shell import COMMON_OPTIONS, FakeShell

KEY = SigningKey.generate()
PATH = "/v1/audit/verify"
WHOLE = AuditVerdict(
    ok=True, cluster="c", entries=41, segments=2, anchors=1, head="ab", keys=("k",), recordings=3
)
BAD = DamagedRecording(
    session="a" * 32, allocation="42@1", entry=7, chunk=3, problem="it is missing"
)
ONE, TWO = finished_recording(1), finished_recording(2)


def run(shell: FakeShell, *words: str) -> int:
    values = argv.read(AUDIT, words)
    assert values is not None, words
    for common in COMMON_OPTIONS:
        values.pop(common)
    return AUDIT.run(shell, **values)


def verified(verdict: AuditVerdict, *words: str) -> tuple[int, str, FakeShell]:
    shell = FakeShell({PATH: json.loads(msgspec.json.encode(verdict))})
    return run(shell, "verify", *words), shell.out, shell


@pytest.mark.spec("AUDIT-4")
def test_a_damaged_recording_is_named_and_the_exit_code_is_1() -> None:
    verdict = replace(WHOLE, ok=False, recordings_damaged=3, damaged=(BAD,))
    code, out, _ = verified(verdict)
    assert code == 1
    assert out.startswith(f"BAD: recording {'a' * 32} of 42@1: chunk 3: it is missing (entry 7)\n")
    assert "The log itself is whole: 41 entries" in out
    assert "BAD: 2 more recordings\n" in out
    assert "Recordings: 3 whole, 0 removed after their retention\n" in out


def test_what_could_not_be_checked_is_no_success() -> None:
    verdict = replace(WHOLE, recordings=0, recordings_unchecked=3, unchecked_because="it is away")
    code, out, _ = verified(verdict)
    assert code == 75
    assert out.startswith("NOT CHECKED: 3 recordings: it is away\nThe log itself is whole: ")
    assert "Recordings:" not in out
    assert verified(replace(verdict, ok=False, damaged=(BAD,), recordings_damaged=1))[0] == 1


def test_a_broken_log_is_named_first() -> None:
    verdict = replace(
        WHOLE,
        ok=False,
        first_bad=9,
        problem="it was changed",
        recordings_damaged=1,
        damaged=(BAD,),
    )
    code, out, _ = verified(verdict)
    assert code == 1
    assert out.startswith("BAD: the first bad entry is 9: it was changed\n")


def test_a_day_is_for_recordings_on_a_server_alone() -> None:
    code, out, shell = verified(WHOLE, "--since", "2d")
    assert (code, out.startswith("OK: 41 entries")) == (0, True)
    assert "'2026-11-13T" in str(shell.calls[0].params)
    for words in (("verify", "x", "--since", "2d"), ("verify", "--user", "u")):
        with pytest.raises(UsageError):
            run(FakeShell({}), *words)
    with pytest.raises(UsageError, match="goes with verify FILE"):
        run(FakeShell({}), "verify", "--recordings", "x")


async def bundle(folder: Path, *recordings: FinishedRecording, removed: bool = False) -> Path:
    clock = SystemClock()
    chain = audit_replica(InMemoryStateStore(clock), clock, KEY).chain
    await chain.append([each.end for each in recordings])
    if removed:
        await chain.append([each.removal(0) for each in recordings])
    first = first_line(CLUSTER, "2026-11-15T14:02:11Z", "rita")
    end = chain.batches[-1].end
    sign = lambda text: (KEY.name, KEY.sign(text))  # noqa: E731 - as the signer does
    text = b"".join(each.text for each in chain.batches)
    file = folder / "audit.bundle"
    file.write_bytes(first + text + last_line(first, end, sign))
    return file


def copied(folder: Path, *recordings: FinishedRecording) -> str:
    copy = folder / "copy"
    copy.mkdir(exist_ok=True)
    for each in recordings:
        for key, chunk in zip(each.keys, each.chunks, strict=True):
            (copy / key).parent.mkdir(parents=True, exist_ok=True)
            (copy / key).write_bytes(chunk)
    return str(copy)


@pytest.mark.spec("AUDIT-3", "AUDIT-4")
async def test_recordings_are_verified_offline_with_a_copy_of_the_bucket(tmp_path: Path) -> None:
    file, copy = str(await bundle(tmp_path, ONE, TWO)), copied(tmp_path, ONE, TWO)
    shell = FakeShell({})
    assert run(shell, "verify", file, "--recordings", copy) == 0
    assert "Recordings: 2 whole, 0 removed" in shell.out
    (Path(copy) / TWO.keys[2]).unlink()
    shell = FakeShell({})
    assert run(shell, "verify", file, "--recordings", copy) == 1
    session = TWO.path.name.session
    assert f"BAD: recording {session} of 2@1772366400: chunk 2: it is missing" in shell.out
    shell = FakeShell({})
    assert run(shell, "verify", file) == 0
    assert "Recordings" not in shell.out
    with pytest.raises(UsageError, match="is no folder"):
        run(FakeShell({}), "verify", file, "--recordings", f"{copy}-x")


async def test_offline_a_removed_recording_is_not_missing_either(tmp_path: Path) -> None:
    file, copy = str(await bundle(tmp_path, ONE, TWO, removed=True)), copied(tmp_path, ONE)
    shell = FakeShell({})
    assert run(shell, "verify", file, "--recordings", copy) == 0
    assert "Recordings: 1 whole, 1 removed after their retention" in shell.out
