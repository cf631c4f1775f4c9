"""`SqueueRecords`: the jobs of the rows that `squeue` printed, made again only where rows changed.

Of a list of all jobs, and over it those of users who were read alone since. Not for two threads at
a time. The index is replaced at the end of each change, so that it can be read meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.adapters.slurm.commands import Printed
from lattice.adapters.slurm.poller import PollCounts
from lattice.adapters.slurm.row_blocks import RowBlocks
from lattice.adapters.slurm.schema.squeue import SqueueFormat, job_id_of
from lattice.domain.allocation import Allocation
from lattice.domain.allocation_index import AllocationIndex, JobChanges


@dataclass(slots=True, eq=False)
class _Record:
    """A record of slurmctld: several rows if it stands for several tasks of an array."""

    rows: tuple[bytes, ...]
    job: Allocation


_Records = dict[bytes, _Record]


@dataclass(frozen=True, slots=True)
class _Alone:
    """The records of one user, read alone."""

    asked_s: float
    records: _Records


class SqueueRecords:
    """The records by job id."""

    def __init__(
        self,
        decode: Callable[[Sequence[bytes]], Allocation | None],
        counts: PollCounts,
    ) -> None:
        """`decode` makes a job of the rows of one record."""
        self.index = AllocationIndex()
        self._decode = decode
        self._counts = counts
        self._blocks = RowBlocks()
        self._whole: _Records = {}
        self._alone: dict[str, _Alone] = {}
        self._shown: _Records = {}
        self._has_whole = False

    def take_whole(self, form: SqueueFormat, output: Printed, asked_s: float) -> bool:
        """The list of all jobs; True if anything changed. Raises `BadRows`."""
        blocks, changes = self._blocks.next(form, output)
        gone = frozenset(changes.gone)
        by_id: dict[bytes, list[bytes]] = {job_id_of(row): [] for row in changes.gone}
        for row in changes.new:
            by_id.setdefault(job_id_of(row), []).append(row)
        made: dict[bytes, _Record | None] = {}
        for job_id, rows in by_id.items():
            before = self._whole.get(job_id)
            left = [row for row in before.rows if row not in gone] if before else []
            made[job_id] = self._made(job_id, (*left, *rows))
        over = {user for user, each in self._alone.items() if each.asked_s <= asked_s}
        concerned = {*made, *(key for each in self._alone.values() for key in each.records)}
        made_again = sum(job_id in self._whole for job_id in made)
        self._counts.records_reused_total += len(self._whole) - made_again
        self._blocks = blocks
        for job_id, record in made.items():
            _put(self._whole, job_id, record)
        for user in over:
            del self._alone[user]
        if over:
            concerned.update(_of_users(self._whole, over))
        return self._show({job_id: self._current(job_id) for job_id in concerned})

    def take_users(
        self, form: SqueueFormat, output: Printed, users: Collection[str], asked_s: float
    ) -> bool:
        """The list of the jobs of these users; True if anything changed. Raises `BadRows`.

        It is not shown before the first list of all jobs.
        """
        by_id: dict[bytes, list[bytes]] = {}
        for row in form.rows(output):
            by_id.setdefault(job_id_of(row), []).append(row)
        made = {job_id: self._made(job_id, tuple(rows)) for job_id, rows in by_id.items()}
        alone: dict[str, _Records] = {user: {} for user in users}
        for job_id, record in made.items():
            if record is not None and record.job.user in alone:
                alone[record.job.user][job_id] = record
        concerned = {*made, *_of_users(self._shown, users)}
        self._alone |= {user: _Alone(asked_s, each) for user, each in alone.items()}
        if not self._has_whole:
            return False
        return self._show({job_id: self._current(job_id) for job_id in concerned})

    def replace(
        self,
        change: Callable[[Allocation], Allocation],
        among: Iterable[Allocation] | None = None,
    ) -> None:
        """Apply data from elsewhere to these jobs, or to every one."""
        ids = self._whole.keys() | self._shown.keys() if among is None else map(_id_of, among)
        added, gone = [], []
        for job_id in ids:
            shown, whole = self._shown.get(job_id), self._whole.get(job_id)
            if shown is not None:
                before, shown.job = shown.job, change(shown.job)
                if shown.job is not before:
                    gone.append(before)
                    added.append(shown.job)
            if whole is not None and whole is not shown:
                whole.job = change(whole.job)
        self.index = self.index.changed(JobChanges(tuple(added), tuple(gone)))

    def forget(self, index: AllocationIndex) -> None:
        """Begin anew after `index`: the list was read elsewhere meanwhile."""
        self.index, self._blocks, self._has_whole = index, RowBlocks(), False
        for each in (self._whole, self._alone, self._shown):
            each.clear()

    def _made(self, job_id: bytes, rows: tuple[bytes, ...]) -> _Record | None:
        """The record of these rows; one that was made of the same rows before."""
        if not rows:
            return None
        for records in (self._shown, self._whole):
            before = records.get(job_id)
            if before is not None and (before.rows == rows or set(before.rows) == set(rows)):
                return before
        job = self._decode(rows)
        self._counts.records_decoded_total += 1
        if job is None:
            self._counts.decode_dropped_total += 1
            return None
        return _Record(rows, job)

    def _current(self, job_id: bytes) -> _Record | None:
        """The record of a job in the newest list that has its user."""
        record = self._whole.get(job_id)
        known = record or self._shown.get(job_id)
        alone = self._alone.get(known.job.user) if known is not None else None
        if alone is None:
            for each in self._alone.values():
                if job_id in each.records:
                    alone = each
        return alone.records.get(job_id) if alone is not None else record

    def _show(self, records: Mapping[bytes, _Record | None]) -> bool:
        """Replace these; True if any is another one."""
        added, gone = [], [] if self._has_whole else list(self.index.allocations)
        for job_id, record in records.items():
            before = self._shown.get(job_id)
            if before is record:
                continue
            if before is not None:
                gone.append(before.job)
            if record is not None:
                added.append(record.job)
            _put(self._shown, job_id, record)
        self._has_whole = True
        self.index = self.index.changed(JobChanges(tuple(added), tuple(gone)))
        return bool(added or gone)


def _put(records: _Records, job_id: bytes, record: _Record | None) -> None:
    if record is None:
        records.pop(job_id, None)
    else:
        records[job_id] = record


def _id_of(job: Allocation) -> bytes:
    return str(job.job_id).encode("ascii")


def _of_users(records: _Records, users: Collection[str]) -> Iterable[bytes]:
    return [job_id for job_id, each in records.items() if each.job.user in users]
