"""What the audit log costs: commits against bare puts in etcd, and verifying a large log.

    python -m bench.audit [--entries 1000000] [--rounds 9]

`bench.audit_commits` measures the commits. The log to verify is made by the code of the server, in
segments of an archive in a folder. Each batch has as many entries as gather in a busy server. The
verification reads the archive in a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import audit_commits
from bench.audit_commits import event
from bench.figures import Figure
from lattice.access.grants import GrantSigner
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.sqlite.store import open_sqlite
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey, key_name
from lattice.domain.audit import TRUSTS, AuditAct, AuditEvent, entry_of
from lattice.domain.audit_chain import ChainPoint, genesis, make_batch
from lattice.domain.state import Put, StateStore
from lattice.features.audit.service.archive import AuditArchive, Segment
from lattice.features.audit.service.head import HEAD, AuditHead, block_key
from lattice.features.audit.service.reader import AuditReader, Verification

CLUSTER = "bench"
ENTRIES = 1_000_000
BATCH = 20
SEGMENT = 4_000
GROWTH_GOAL_MB = 64.0


async def make_log(
    archive: AuditArchive, state: StateStore, signer: GrantSigner, entries: int
) -> None:
    """Store the log: whole segments in the archive, and the last batch in the state store."""
    clock, point = SystemClock(), genesis(CLUSTER)
    keys = signer.public_keys
    detail = " ".join((TRUSTS, *(each.hex() for each in keys)))
    first = AuditEvent(event="begin", act=AuditAct.KEY_CHANGE, detail=detail)
    before, texts = point, [b""]
    while point.sequence < entries:
        now, begin = clock.now(), point.sequence + 1
        count = min(BATCH, entries - point.sequence)
        events = [first if n == 1 else event(n) for n in range(begin, begin + count)]
        members = [entry_of(each, begin + n, now) for n, each in enumerate(events)]
        batch = make_batch(CLUSTER, point, members, signer.sign_audit)
        point = batch.end
        if point.sequence == entries:
            break
        texts.append(batch.text)
        if point.sequence % SEGMENT == 0:
            await archive.write(_segment(before, keys, texts), point)
            before, texts = point, []
    if len(texts) > 1:
        archived = ChainPoint(batch.first - 1, _link_before(texts))
        await archive.write(_segment(before, keys, texts), archived)
        before = archived
    head = AuditHead(cluster=CLUSTER, newest=point, archived=before, keys=keys, archived_keys=keys)
    await state.commit([], [Put(HEAD, head.encoded()), Put(block_key(batch.first), batch.text)])


def _segment(before: ChainPoint, keys: tuple[bytes, ...], texts: list[bytes]) -> Segment:
    known = keys if before.sequence else ()
    return Segment(CLUSTER, before, known, b"".join(texts))


def _link_before(texts: list[bytes]) -> bytes:
    return bytes.fromhex(texts[-1].splitlines()[-2][:64].decode())


def resident_mb() -> float:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def verified(folder: Path, keys: frozenset[str], state: StateStore) -> tuple[float, int]:
    began = time.perf_counter()
    archive = AuditArchive(FolderObjectStore(folder))
    verdict = await Verification(AuditReader(state, archive), keys, {}).run()
    if not verdict.ok:
        raise SystemExit(f"entry {verdict.first_bad}: {verdict.problem}")
    return time.perf_counter() - began, verdict.entries


async def measure(entries: int) -> bool:
    with TemporaryDirectory(prefix="lattice-audit-") as name:
        folder = Path(name)
        signer = GrantSigner(SigningKey.generate(), SystemClock())
        keys = frozenset(map(key_name, signer.public_keys))
        async with open_sqlite(folder / "small") as small:
            archive = AuditArchive(FolderObjectStore(folder / "one"))
            await make_log(archive, small, signer, entries // 10)
            await verified(folder / "one", keys, small)
        async with open_sqlite(folder / "large") as state:
            archive = AuditArchive(FolderObjectStore(folder / "ten"))
            await make_log(archive, state, signer, entries)
            before_mb = resident_mb()
            seconds, count = await verified(folder / "ten", keys, state)
        growth_mb = resident_mb() - before_mb
        stored = sum(each.stat().st_size for each in (folder / "ten").rglob("*.zst"))
    Figure(name=f"audit: verify {count} entries", value=seconds, unit="s").print(
        entries_a_second=round(count / seconds), archive_mb=round(stored / 1e6, 1), batch=BATCH
    )
    good = growth_mb <= GROWTH_GOAL_MB
    Figure(
        name="audit: memory that ten times as many entries take more",
        value=growth_mb,
        unit="MB",
        goal=GROWTH_GOAL_MB,
        ok=good,
    ).print(resident_mb=round(resident_mb(), 1))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--rounds", type=int, default=audit_commits.ROUNDS)
    options = parser.parse_args()
    commits = audit_commits.main(["--rounds", str(options.rounds)])
    return 0 if asyncio.run(measure(options.entries)) and commits == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
