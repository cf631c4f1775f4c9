"""Answers of the server as JSON, written by hand so that a change of the models shows."""

from __future__ import annotations

from typing import Any

NOW = "2026-11-15T14:02:11Z"
OK = {"name": "slurmctld", "ok": True, "as_of": NOW, "age_s": 1.0, "error": None}
PAST_OK = {"name": "slurmdbd", "ok": True, "as_of": NOW, "age_s": 0.1, "error": None}


def allocation(job_id: int = 12345, **changes: Any) -> dict[str, Any]:
    return {
        "cluster": "lab",
        "id": str(job_id),
        "job_id": job_id,
        "name": "train",
        "user": "alice",
        "account": "research",
        "tenant": "physics",
        "partition": "gpu",
        "qos": "normal",
        "vcluster": "gpu",
        "state": "running",
        "submitted": "2026-11-15T13:00:00Z",
        "first_submitted": "2026-11-15T13:00:00Z",
        "started": "2026-11-15T13:30:00Z",
        "elapsed_s": 1931,
        "time_limit_s": 7200,
        "nodes": "n[1-2]",
        "node_count": 2,
        "cpus": 8,
        "gpus": 4,
        "memory_bytes": 68719476736,
        "attempt": 1,
        "attempts": [],
        "work_dir": "/home/alice/run",
        "command": "/home/alice/run/train.sh",
        "output": "/home/alice/run/slurm-12345.out",
        "unknown_to_this_version": {"x": 1},
    } | changes


def pending(job_id: int = 12346, **changes: Any) -> dict[str, Any]:
    return allocation(
        job_id,
        state="pending",
        started=None,
        elapsed_s=None,
        nodes="",
        node_count=4,
        reason={
            "code": "Priority",
            "words": "Jobs with a higher priority are ahead of it in the queue",
        },
        **changes,
    )


def task(number: int, state: str, *, job_id: int = 42, **changes: Any) -> dict[str, Any]:
    return allocation(
        job_id * 10 + number,
        id=f"{job_id}_{number}",
        name="sweep",
        state=state,
        array={"job_id": job_id, "task_id": number, "waiting": ""},
        **changes,
    )


def listing(*allocations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"allocations": list(allocations), "sources": [OK, PAST_OK], "next": None} | changes


def card(each: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"allocation": each, "sources": [OK], "siblings": [], "earlier": []} | changes


IDENTITY = {
    "sub": "u-1",
    "user": {"value": "alice", "source": "claim preferred_username"},
    "tenant": {"value": "physics", "source": "claim tenant"},
    "role": {"value": "User", "source": "default"},
    "scopes": ["openid", "profile"],
    "coordinates": [],
    "expires": "2026-11-15T15:02:11Z",
    "cluster": "lab",
}


def node(name: str = "n1", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "state": "ready",
        "slurm_state": "MIXED",
        "partitions": ["gpu", "batch"],
        "cpus": 64,
        "cpus_allocated": 32,
        "memory_bytes": 256 * 2**30,
        "memory_allocated_bytes": 64 * 2**30,
        "gpus": 4,
        "gpus_allocated": 2,
        "switch": "s1",
        "reason": "",
        "reason_by": "",
        "reason_at": None,
        "slurm_version": "22.05.8",
        "booted": "2026-11-01T08:00:00Z",
    } | changes


def refusal(code: str, message: str, hint: str = "Do something else.") -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint, "request_id": "r-1"}}
