"""Records what slurmrestd answers about one set of jobs, in every schema version it serves.

    python -m lab record FOLDER [--name LAB]

The lab must be up and new, without jobs. The jobs are the same with every release of Slurm, by
name: a test compares what Lattice reads of them. Answers are kept as they come, without the parts
that Lattice never asks for: limits of associations, statistics by call, descriptions of the API.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.laboratory import Lab

_OPENAPI = "/openapi/v3"
_LISTS = {
    "jobs": "slurm/{version}/jobs",
    "nodes": "slurm/{version}/nodes",
    "diag": "slurm/{version}/diag",
    "past-jobs": "slurmdb/{version}/jobs",
    "accounts": "slurmdb/{version}/accounts",
    "associations": "slurmdb/{version}/associations",
}
_VERSION = re.compile(r"/slurm/(v0\.0\.[0-9]+)/jobs/?")
_OLDEST = 38
_KEPT_OF_ASSOCIATION = ("account", "cluster", "user", "parent_account", "partition", "id")
_SETTLED_S = 8.0


def record(lab: Lab, folder: Path) -> list[str]:
    """Make the jobs, and write the answers to `folder/VERSION/LIST.json`; returns the versions."""
    _make_jobs(lab)
    openapi = _answer(lab, _OPENAPI)
    found = (_VERSION.fullmatch(path) for path in openapi["paths"])
    versions = sorted(each[1] for each in found if each and _number(each[1]) >= _OLDEST)
    for version in versions:
        place = folder / version
        place.mkdir(parents=True, exist_ok=True)
        for name, path in _LISTS.items():
            body = _answer(lab, "/" + path.format(version=version) + _query(name))
            _write(place / f"{name}.json", _without_unused(name, body))
        _write(place / "openapi.json", _described(openapi, version))
    lab.jobs.cancel_all()
    return versions


def _make_jobs(lab: Lab) -> None:
    """One in each state that a person may meet."""

    def submit(name: str, *options: str, wrap: str = "sleep 600") -> int:
        return lab.sbatch("alice", f"--job-name={name}", "--mem=64", *options, wrap=wrap)

    lost = submit("node-failed", "--nodelist=n3", "--no-requeue")
    lab.wait_job_state(lost, "RUNNING")
    lab.ctl(["scontrol", "update", "nodename=n3", "state=down", "reason=power"])
    lab.wait_job_state(lost, "NODE_FAIL")
    # A node of 22.05 is back already.
    lab.ctl(["scontrol", "update", "nodename=n3", "state=resume"], check=False)

    # All of n2, so that only another job of higher rank gets it.
    preempted = submit("preempted", "--qos=low", "--requeue", "--nodelist=n2", "--exclusive")
    lab.wait_job_state(preempted, "RUNNING")
    done = submit("completed", wrap="exit 0")
    failed = submit("failed", wrap="exit 3")
    killed = submit("killed", wrap="kill -9 $$")
    late = submit("timed-out", "--time=0:01")
    cancelled = submit("cancelled")
    requeued = submit("requeued", "--requeue")
    two = ("--nodelist=n1,n3", "--nodes=2", "--ntasks=2", "--gres=gpu:1")
    running = submit("running", *two, "--comment=two nodes")
    submit("held", "--hold")
    submit("array", "--array=0-3%1")
    lab.run_as(
        "alice",
        [
            *("sbatch", "--job-name=heterogeneous", "--mem=64", "--wrap=sleep 600"),
            *("-n1", ":", "-n1", "--mem=64"),
        ],
        check=True,
    )
    submit("dependent", f"--dependency=afterok:{cancelled}")
    for job, state in ((done, "COMPLETED"), (failed, "FAILED"), (killed, "FAILED")):
        lab.wait_job_state(job, state)
    for job in (cancelled, requeued, running):
        lab.wait_job_state(job, "RUNNING")
    lab.ctl(["scancel", str(cancelled)])
    lab.ctl(["scontrol", "requeue", str(requeued)])
    submit("preempting", "--qos=high", "--nodelist=n2", "--exclusive")
    lab.wait_job_state(cancelled, "CANCELLED")
    lab.wait_job_state(preempted, "PENDING")
    lab.wait_job_state(late, "TIMEOUT", timeout_s=180)
    # Accounting gets to know it a little later.
    time.sleep(_SETTLED_S)


def _answer(lab: Lab, target: str) -> Any:
    socket = lab.slurm.files.rest_socket
    argv = ["curl", "-sS", "--unix-socket", str(socket), f"http://localhost{target}"]
    return json.loads(lab.control.room.run(argv, user="lattice").stdout)


def _query(name: str) -> str:
    return "?skip_steps=true" if name == "past-jobs" else ""


def _without_unused(name: str, body: dict[str, Any]) -> dict[str, Any]:
    body.pop("meta", None)
    if name == "associations":
        kept = [_only(each, _KEPT_OF_ASSOCIATION) for each in body["associations"]]
        return body | {"associations": kept}
    if name == "diag":
        return body | {"statistics": _only(body["statistics"], ("req_time", "req_time_start"))}
    if name == "past-jobs":
        for job in body["jobs"]:
            job.pop("steps", None)
            job.pop("script", None)
    return body


def _only(fields: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _described(openapi: dict[str, Any], version: str) -> dict[str, Any]:
    """Paths of one version with the names of their parameters, and the fields of their records."""
    schemas = openapi.get("components", {}).get("schemas", {})
    paths: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for path, value in openapi["paths"].items():
        if f"/{version}/" not in path or not isinstance(value.get("get"), dict):
            continue
        get = value["get"]
        names = [each["name"] for each in get.get("parameters", ()) if "name" in each]
        paths[path] = {"get": {"parameters": [{"name": name} for name in names]}}
        if path.strip("/") in {each.format(version=version) for each in _LISTS.values()}:
            answer = get["responses"]["200"]["content"]["application/json"]["schema"]
            paths[path]["get"]["responses"] = {
                "200": {"content": {"application/json": {"schema": answer}}}
            }
            kept |= _reachable(answer, schemas, 3)
    return {"paths": paths, "components": {"schemas": kept}}


def _reachable(schema: Any, schemas: dict[str, Any], depth: int) -> dict[str, Any]:
    """The schemas that one refers to, without what is below the fields of records."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name not in schemas or not depth:
        return {}
    found = schemas[name]
    kept: dict[str, Any] = {}
    properties = found.get("properties", {})
    for each in (*properties.values(), found.get("items", {})):
        kept |= _reachable(each, schemas, depth - 1)
    if depth == 1:
        found = {"properties": {field: {} for field in properties}}
    return {name: found} | kept


def _number(version: str) -> int:
    return int(version.rpartition(".")[2])


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
