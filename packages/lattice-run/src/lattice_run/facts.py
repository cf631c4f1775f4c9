"""What a process can say of the Slurm job it is in: environment and control group → attributes.

The control group is the kernel's word and the environment is inherited, so the first one wins:

- A job that was submitted from inside another one has that one's variables, unless Slurm set
  them again. Step and heterogeneous group are compared with the job's own number.
- In a step over several components of a heterogeneous job, `SLURM_JOB_ID` is the first one's on
  every node. The control group has the component's own number. Containers may hide it; then the
  node tells, if no two components share it.

An array's number and a restart count may be an outer job's, and nothing shows that. So they are
left out where the job was submitted from a host that is named like a node. `slurm.job.id` is always
the job's own, and an allocation can be found by it.

Text that can't be sent as UTF-8 and numbers that are none are left out: one bad job name would
otherwise lose all data of an exporter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

CGROUP = "/proc/self/cgroup"
_LONGEST = 2000
"""Characters of a value; MLflow refuses a run with a longer tag (5000 in its older releases)."""
_MOST_DIGITS = 10
_STEPS = {"-5": "batch", "-4": "extern", "-6": "interactive"}
_STEPS |= {str(2**32 + int(number)): name for number, name in _STEPS.items()}
_HET_JOB = "SLURM_JOB_ID_HET_GROUP_"
_NODES = r"([^,\[\]]+)(?:\[([0-9,-]+)\])?([^,\[\]]*)(?:,|$)"
"""One item of a list of nodes. Compiled when it is needed, as that takes longer than the rest."""
_DIGITS = str.maketrans("", "", "0123456789")
_RUN_LENGTH = 14
"""Of the name of a control group from Slurm 26.05 on, cgroup v2: `sDFDM7JZPGD600`."""

Attributes = dict[str, str | int]


def current(
    environ: Mapping[str, str] | None = None, read: Callable[[], str] | None = None
) -> Attributes:
    """Of this process. Empty outside a job; never an exception."""
    try:
        return attributes(os.environ if environ is None else environ, (read or _read)())
    except Exception:  # noqa: BLE001 - a training must not end because of its labels
        return {}


def attributes(environ: Mapping[str, str], cgroup: str) -> Attributes:
    """What these two say together. Empty if neither names a job."""
    of_kernel, step = _of_kernel(cgroup)
    named = _number(environ, "SLURM_JOB_ID") or _number(environ, "SLURM_JOBID")
    job = of_kernel or named
    if not job:
        return {}
    found: Attributes = {}
    _put(found, "slurm.cluster.name", _text(environ, "SLURM_CLUSTER_NAME"))
    _put(found, "slurm.job.id", str(job))
    _put(found, "slurm.node.name", _text(environ, "SLURMD_NODENAME"))
    _put(found, "lattice.allocation.id", str(job))
    components = _components(environ)
    if named != job and not {named, job} <= components.keys():
        # The variables of another job, or none: a login that Slurm moved into the job.
        _put(found, "slurm.step.id", step)
        return found
    _put_job(found, environ)
    if job in components:
        _put_component(found, environ, components, of_kernel)
    elif not _submitted_from_a_node(environ):
        _put_array(found, environ)
    _put_task(found, environ, step)
    return found


def _put_job(found: Attributes, environ: Mapping[str, str]) -> None:
    for name in ("account", "partition", "name", "sluid"):
        _put(found, f"slurm.job.{name}", _text(environ, f"SLURM_JOB_{name.upper()}"))
    _put(found, "slurm.job.nodes", _text(environ, "SLURM_JOB_NODELIST"))
    _put(found, "slurm.job.node_count", _number(environ, "SLURM_JOB_NUM_NODES"))
    _put(found, "slurm.job.start_time", _number(environ, "SLURM_JOB_START_TIME"))
    if "SLURM_RESTART_COUNT" not in environ or not _submitted_from_a_node(environ):
        restarts = _number(environ, "SLURM_RESTART_COUNT") or 0
        _put(found, "slurm.job.restart_count", restarts)
        _put(found, "lattice.allocation.attempt", restarts + 1)
    _put(found, "lattice.tenant", _text(environ, "LATTICE_TENANT"))


def _put_component(
    found: Attributes, environ: Mapping[str, str], components: dict[int, int], job: int | None
) -> None:
    """Of a heterogeneous job. Which component it is may stay unknown."""
    leader = min(components, key=components.__getitem__)
    _put(found, "slurm.het.job_id", str(leader))
    _put(found, "slurm.het.size", _number(environ, "SLURM_HET_SIZE"))
    if job is None:
        job = _component_here(environ, components)
    if job is None:
        # What Slurm says is of the first component, and this may be another.
        for name in ("partition", "account", "nodes", "node_count"):
            found.pop(f"slurm.job.{name}", None)
        return
    group = components[job]
    _put(found, "slurm.job.id", str(job))
    _put(found, "slurm.het.group", group)
    _put(found, "lattice.allocation.id", f"{leader}+{group}")
    for name in ("account", "partition", "name"):
        text = _text(environ, f"SLURM_JOB_{name.upper()}_HET_GROUP_{group}")
        _put(found, f"slurm.job.{name}", text)
    _put(found, "slurm.job.nodes", _text(environ, f"SLURM_JOB_NODELIST_HET_GROUP_{group}"))
    count = _number(environ, f"SLURM_JOB_NUM_NODES_HET_GROUP_{group}")
    _put(found, "slurm.job.node_count", count)


def _put_array(found: Attributes, environ: Mapping[str, str]) -> None:
    array = _number(environ, "SLURM_ARRAY_JOB_ID")
    task = _number(environ, "SLURM_ARRAY_TASK_ID")
    if array and task is not None:
        _put(found, "slurm.array.job_id", str(array))
        _put(found, "slurm.array.task_id", str(task))
        _put(found, "lattice.allocation.id", f"{array}_{task}")


def _put_task(found: Attributes, environ: Mapping[str, str], step: str | None) -> None:
    if step is None:
        shown = environ.get("SLURM_STEP_ID", "")
        step = _STEPS.get(shown) or (shown if _is_number(shown) else None)
        if step is None and "SLURM_TASK_PID" in environ:
            # Older releases give a batch script no number of its step.
            step = "batch"
    _put(found, "slurm.step.id", step)
    _put(found, "slurm.task.rank", _number(environ, "SLURM_PROCID"))
    _put(found, "slurm.task.local_rank", _number(environ, "SLURM_LOCALID"))
    _put(found, "slurm.node.index", _number(environ, "SLURM_NODEID"))
    if step is not None and _is_number(step):
        _put(found, "slurm.step.task_count", _number(environ, "SLURM_STEP_NUM_TASKS"))


def _of_kernel(cgroup: str) -> tuple[int | None, str | None]:
    """The job and the step by the control group, as far as it names them."""
    job, step = None, None
    for line in cgroup.splitlines():
        parts = [*line.split("/"), ""]
        for parent, name, child in zip(parts, parts[1:], parts[2:], strict=False):
            number = name.removeprefix("job_")
            is_job = number != name and _is_number(number) and "slurm" in line
            if is_job:
                job = int(number)
            elif not (parent.endswith("slurmstepd.scope") and _is_run(name)):
                continue
            shown = child.removeprefix("step_")
            if shown != child and shown.isascii() and shown.isalnum():
                step = shown
    return job, step


def _is_run(name: str) -> bool:
    return len(name) == _RUN_LENGTH and name[0] == "s" and name[1:].isalnum()


def _submitted_from_a_node(environ: Mapping[str, str]) -> bool:
    """True if it may be: `n7` for the node `n3`. Then variables may be those of a job there."""
    host, _, _ = environ.get("SLURM_SUBMIT_HOST", "").partition(".")
    node, _, _ = environ.get("SLURMD_NODENAME", "").partition(".")
    return bool(node) and host.translate(_DIGITS) == node.translate(_DIGITS)


def _components(environ: Mapping[str, str]) -> dict[int, int]:
    """Job numbers of a heterogeneous job, with their groups."""
    found = {}
    for name in environ:
        group = name.removeprefix(_HET_JOB)
        if group != name and _is_number(group) and (job := _number(environ, name)):
            found[job] = int(group)
    return found


def _component_here(environ: Mapping[str, str], components: dict[int, int]) -> int | None:
    """The only component that has this node."""
    node = environ.get("SLURMD_NODENAME", "")
    here = [
        job
        for job, group in components.items()
        if _has(environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", ""), node)
    ]
    return here[0] if node and len(here) == 1 else None


def _has(nodes: str, node: str) -> bool:
    """True if a list such as `n[1-3,7],gpu01` has the node."""
    for before, ranges, after in re.findall(_NODES, nodes):
        if not ranges:
            if before + after == node:
                return True
            continue
        number = node[len(before) : len(node) - len(after)]
        if node != before + number + after or not _is_number(number):
            continue
        for each in ranges.split(","):
            first, _, last = each.partition("-")
            if len(number) == len(first) and int(first) <= int(number) <= int(last or first):
                return True
    return False


def _read() -> str:
    try:
        with open(CGROUP, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read(65536)
    except OSError:
        return ""


def _put(found: Attributes, name: str, value: str | int | None) -> None:
    if value is not None:
        found[name] = value


def _text(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name, "")
    # Bytes that are no UTF-8 are surrogates here, and those are not printable.
    sound = 0 < len(value) <= _LONGEST and value.isprintable()
    return value if sound and value != "(null)" else None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if _is_number(value) else None


def _is_number(text: str) -> bool:
    return 0 < len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit()
