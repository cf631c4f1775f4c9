"""The rows of `squeue`: the same jobs as slurmrestd lists, at a hundredth of the cost.

With 50 000 jobs slurmrestd needs minutes and gigabytes for its list, `squeue` one second. A row has
what changes while a job waits and runs. What it lacks is read by the job's id: which GPUs a job
has, and how long it was suspended.

Users choose names, comments and paths freely, with any separator and line feed in them. So random
marks end each of those fields, and each row. `squeue` gets them in its environment, which other
users can't read. They are replaced every few minutes, and after each failed reading.

`-r` prints each waiting task of an array. The tasks that share a record of slurmctld become one
record again here.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lattice.adapters.slurm.schema import fields
from lattice.adapters.slurm.schema.build import JobFacts, live_of
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import Allocation, ExitCode

_PLAIN = (
    *("JobID", "ArrayTaskID", "ArrayJobID", "HetJobID", "HetJobOffset", "UserName", "State"),
    *("SubmitTime", "EligibleTime", "StartTime", "EndTime", "PreemptTime", "TimeLimit"),
    *("NumNodes", "NumTasks", "NumCPUs", "exit_code", "RestartCnt", "BatchHost", "NodeList"),
)
_FREE = (
    *("Reason", "Dependency", "Account", "Partition", "QOS", "tres-alloc"),
    *("Name", "Comment", "WorkDir", "Command", "STDOUT", "Container"),
)
_SLUID = "SLUID"
_NOTHING = frozenset({"", "N/A", "n/a", "NONE", "(null)", "Unknown"})
_PATTERN = re.compile(r"%(.)", re.DOTALL)
_NO_TASK = "4294967294"
"""What Slurm writes into the name of a file for a job that is no task."""
_NOT_GIVEN = "(null)"
_END = b"\0"
_TIME = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,2}):)?([0-9]{1,4}):([0-9]{2})", re.ASCII)
_FIELD_MARK_BYTES = 4
"""Who guesses it garbles a job of its own. Who guesses the mark of rows makes up a job."""
_ROW_MARK_BYTES = 8
_PIECE_BYTES = 1024 * 1024
"""Parsed at once, so that other threads of the server run in between."""


class BadRows(ValueError):
    """The output is not what was asked for."""


@dataclass(frozen=True, slots=True)
class SqueueFormat:
    """What readings ask for, and the marks that end their free fields and their rows."""

    field_mark: str
    row_mark: str
    with_sluid: bool

    @classmethod
    def new(cls, *, with_sluid: bool) -> SqueueFormat:
        """`with_sluid`: Slurm's unique ids, which older releases do not have."""
        return cls(_mark(_FIELD_MARK_BYTES), _mark(_ROW_MARK_BYTES), with_sluid)

    @property
    def environment(self) -> Mapping[str, str]:
        """What `squeue` reads it from. A width of 0 neither cuts nor pads a field."""
        *plain, last_plain = (*_PLAIN, _SLUID) if self.with_sluid else _PLAIN
        *free, last_free = _FREE
        asked = [f"{name}:0|" for name in plain]
        asked += [f"{name}:0{self.field_mark}" for name in (last_plain, *free)]
        asked += [f"{last_free}:0{self.row_mark}"]
        return {"SQUEUE_FORMAT2": ",".join(asked), "SLURM_TIME_FORMAT": "%s"}

    @property
    def row_end(self) -> bytes:
        """What ends each row of the output."""
        return self.row_mark.encode("ascii") + b"\n"

    def rows(self, output: bytes | bytearray) -> Iterator[bytes]:
        """Each row, equal in two readings if nothing of it changed. Raises `BadRows`.

        Fields end with a NUL, which no text of Slurm has in it.
        """
        field_mark, end = self.field_mark.encode("ascii"), self.row_end
        begin = 0
        while begin < len(output):
            stop = output.find(end, begin + _PIECE_BYTES)
            stop = len(output) if stop < 0 else stop + len(end)
            piece = bytes(output[begin:stop]).replace(field_mark, _END)
            *rows, rest = piece.split(end)
            if rest:
                raise BadRows("squeue did not print the fields it was asked for")
            yield from rows
            begin = stop


def _mark(size: int) -> str:
    # A digit would count as a part of the width before it.
    return f"m{secrets.token_hex(size)}"


def job_id_of(row: bytes) -> bytes:
    """The id of its record, which the waiting tasks of an array share."""
    return row[: row.find(b"|")]


def job_of(rows: Sequence[bytes], placing: Placing) -> Allocation | None:
    """The job of these rows, as the decoder of slurmrestd's list makes it; None without identity.

    There are several if its record stands for several tasks of an array.
    """
    facts = _facts(rows)
    return None if facts is None else live_of(facts, placing)


USED_TIME_FORMAT: Mapping[str, str] = {"SQUEUE_FORMAT2": "JobID:0|,TimeUsed:0"}


def used_times(output: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """The seconds that each job has run. Malformed lines are skipped."""
    for line in output.decode("ascii", "replace").splitlines():
        job_id, _, used = line.partition("|")
        number, used_s = _number(job_id), _seconds(used.strip())
        if number is not None and used_s is not None:
            yield number, used_s


def task_ranges(tasks: Iterable[int]) -> str:
    """As Slurm writes them: `1-5,7`."""
    parts: list[str] = []
    first = last = None
    for each in (*sorted(set(tasks)), None):
        if last is not None and each == last + 1:
            last = each
            continue
        if first is not None:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = each
    return ",".join(parts)


def _facts(rows: Sequence[bytes]) -> JobFacts | None:
    plain_text, *free_texts = rows[0].decode("utf-8", "replace").split("\0")
    job_id, *plain = plain_text.split("|")
    names = _PLAIN[1:]
    if len(free_texts) != len(_FREE) or len(plain) not in (len(names), len(names) + 1):
        return None
    own = {name: _known(value) for name, value in zip(names, plain, strict=False)}
    sluid = plain[len(names)] if len(plain) > len(names) else None
    free = {name: _given(value) for name, value in zip(_FREE, free_texts, strict=True)}
    number = _number(job_id)
    state = fields.state_of(own["State"])
    array_id = _number(own["ArrayJobID"])
    restarts = _number(own["RestartCnt"])
    tasks = [each for each in map(_task_of, rows) if each is not None]
    # The record that has the array's id stands for all tasks that have none of their own.
    shared = len(tasks) > 1 or (
        bool(tasks) and state.waiting and number == array_id and not restarts
    )
    code, text = _reason(free["Reason"])
    return JobFacts(
        job_id=number,
        name=free["Name"],
        user=own["UserName"],
        account=free["Account"],
        partition=free["Partition"],
        qos=free["QOS"],
        state=state,
        reason=code,
        reason_text=text,
        submit=_number(own["SubmitTime"]),
        eligible=_number(own["EligibleTime"]),
        start=_number(own["StartTime"]),
        end=_number(own["EndTime"]),
        preempt=_number(own["PreemptTime"]),
        limit_minutes=_minutes(own["TimeLimit"]),
        nodes=own["NodeList"],
        node_count=_number(own["NumNodes"]),
        tasks=_number(own["NumTasks"]),
        cpus=_number(own["NumCPUs"]),
        tres=fields.tres_of(free["tres-alloc"]),
        exit_code=_exit(own["exit_code"]),
        restarts=restarts,
        array_job_id=array_id if tasks else None,
        array_task_id=tasks[0] if tasks and not shared else None,
        array_waiting=task_ranges(tasks) if shared else None,
        het_job_id=_number(own["HetJobID"]),
        het_offset=_number(own["HetJobOffset"]),
        work_dir=free["WorkDir"],
        command=free["Command"],
        output=_output(own, free, job_id),
        comment=free["Comment"],
        container=free["Container"],
        dependency=free["Dependency"],
        sluid=sluid,
    )


def _task_of(row: bytes) -> int | None:
    _, task, _ = row.split(b"|", 2)
    return _number(task.decode("ascii", "replace"))


def _known(value: str) -> str | None:
    return None if value in _NOTHING else value


def _given(value: str) -> str | None:
    return value if value and value != _NOT_GIVEN else None


def _number(value: str | None) -> int | None:
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 20 else None


def _minutes(value: str | None) -> int | None:
    seconds = _seconds(value)
    return None if seconds is None else seconds // 60


def _seconds(value: str | None) -> int | None:
    """`1-02:03:04`, `02:03:04` or `03:04`; None for a limit that is none."""
    found = _TIME.fullmatch(value) if value else None
    if found is None:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _exit(value: str | None) -> ExitCode | None:
    """`3:0` and `0:9`; before 23.11 the wait status."""
    code, colon, signal = (value or "").partition(":")
    if not colon:
        return fields.wait_status(_number(code))
    if number := _number(signal):
        return ExitCode(0, number) if number < 128 else None
    returned = _number(code)
    return ExitCode(returned) if returned is not None and returned <= 255 else None


def _reason(value: str | None) -> tuple[str, str | None]:
    """The code and the text. `squeue` prints the text in place of the code if there is one."""
    if value is None:
        return "None", None
    code = re.match(r"[A-Za-z]+", value)
    if code is None or code[0] == value:
        return value, None
    return code[0], value


def _output(own: Mapping[str, str | None], free: Mapping[str, str | None], job_id: str) -> str:
    """The path as slurmrestd expands it; empty where that can't be known."""
    value, folder = free["STDOUT"] or "", free["WorkDir"] or ""
    if value == f"{folder}/slurm-{job_id}.out":
        # 22.05 prints this for each job that has the default, also where it is not true.
        return ""
    known = {
        "j": job_id,
        "A": own["ArrayJobID"] or job_id,
        "a": own["ArrayTaskID"] or _NO_TASK,
        "u": own["UserName"] or "",
        "x": free["Name"] or "",
        "%": "%",
    }
    if any(mark not in known for mark in _PATTERN.findall(value)):
        return ""
    path = _PATTERN.sub(lambda found: known[found[1]], value)
    return path if not path or path.startswith("/") else f"{folder}/{path}"
