"""Slurm made up at its edges: its commands as programs, and slurmrestd as a server on a socket.

The formats are Slurm's own: rows as `squeue` prints them, documents as slurmrestd 26.05 sent them.
200 allocations a second change their time limit. Nodes stay as they are, and jobs have no GPUs in
Slurm's list, so that the record of a single job is not asked for.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn

from bench.figures import say
from bench.measuring import TELL_S, end_with_the_first
from bench.soak.scale_plan import USERS, Plan, owner_of, project_of
from lattice.adapters.slurm.schema.squeue import SqueueFormat
from lattice.domain.nodeset import NodeSet
from tests.fakes.recorded_slurm import recorded
from tests.integration.link.site import CLUSTER

CHANGES_A_SECOND = 200
_VERSION = "v0.0.45"
_END_FIELD, _END_ROW = "\0", "\1\n"

_SQUEUE = """#!{python} -IS
import os, sys, time
form = dict(each.split(":0", 1) for each in os.environ["SQUEUE_FORMAT2"].split(","))
if "TimeUsed" in form:
    sys.exit(0)
with open("{rows}", "rb") as file:
    rows = file.read()
laps, more = divmod(int((time.time() - {began}) * {rate}), {count})
rows = rows.replace(b"@@@@", b"%04d" % (laps + 1), more).replace(b"@@@@", b"%04d" % laps)
if "-u" in sys.argv:
    users = {{each.encode() for each in sys.argv[sys.argv.index("-u") + 1].split(",")}}
    own = [each for each in rows.split(b"\\1\\n") if each and each.split(b"|", 6)[5] in users]
    rows = b"".join(each + b"\\1\\n" for each in own)
rows = rows.replace(b"\\0", form["Name"].encode()).replace(b"\\1", form["Container"].encode())
sys.stdout.buffer.write(rows)
"""
_PRINTS = """#!/bin/sh
case "$*" in
{cases}
esac
"""


def write_commands(folder: Path, plan: Plan) -> None:
    """`squeue`, `scontrol`, `sacctmgr` and `sacct` in this folder."""
    (folder / "rows").write_text(_rows(plan))
    squeue = _SQUEUE.format(
        python=sys.executable,
        began=time.time(),
        rate=CHANGES_A_SECOND,
        count=plan.allocations,
        rows=folder / "rows",
    )
    _program(folder / "squeue", squeue)
    here = {"show config": f"ClusterName = {CLUSTER}\\nPrivateData = none"}
    past = {"show configuration": "PrivateData = none", "show cluster": CLUSTER}
    for name, prints in (("scontrol", here), ("sacctmgr", past), ("sacct", {})):
        cases = "\n".join(f"*'{asked}'*) printf '{text}\\n';;" for asked, text in prints.items())
        _program(folder / name, _PRINTS.format(cases=cases or "*) ;;"))


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _rows(plan: Plan) -> str:
    asked = SqueueFormat.new(with_sluid=True).environment["SQUEUE_FORMAT2"]
    names = [each.split(":0", 1)[0] for each in asked.split(",")]
    free = names.index("SLUID") + 1
    rows = []
    for job in range(1, plan.allocations + 1):
        fields = _fields(plan, job)
        texts = [fields.get(name, "") for name in names]
        rows.append(_END_FIELD.join(["|".join(texts[:free]), *texts[free:]]) + _END_ROW)
    return "".join(rows)


def _fields(plan: Plan, job: int) -> Mapping[str, str]:
    nodes, home = plan.nodes_of(job), f"/home/{owner_of(job)}"
    number, count = str(job), str(max(1, len(nodes)))
    submitted = str(plan.began - 60)
    return {
        "JobID": number,
        "ArrayTaskID": "N/A",
        "ArrayJobID": number,
        "HetJobID": "0",
        "HetJobOffset": "N/A",
        "UserName": owner_of(job),
        "State": "RUNNING" if nodes else "PENDING",
        "SubmitTime": submitted,
        "EligibleTime": submitted,
        "StartTime": str(plan.began) if nodes else "N/A",
        "EndTime": "N/A",
        "PreemptTime": "N/A",
        "TimeLimit": "1-@@@@:00",
        "NumNodes": count,
        "NumTasks": count,
        "NumCPUs": count,
        "exit_code": "0:0",
        "RestartCnt": "0",
        "BatchHost": nodes[0] if nodes else "n/a",
        "NodeList": NodeSet(nodes).fold() if nodes else "",
        "SLUID": f"s{job:012}",
        "Reason": "None" if nodes else "Priority",
        "Account": project_of(job),
        "Partition": "batch",
        "QOS": "normal",
        "Name": "train",
        "WorkDir": home,
        "Command": "/bin/true",
        "STDOUT": f"{home}/out",
    }


class MadeUpRest:
    """slurmrestd's answers: of the nodes and accounts. Jobs are read from `squeue`."""

    def __init__(self, plan: Plan) -> None:
        nodes, associations = recorded("nodes", _VERSION), recorded("associations", _VERSION)
        accounts = recorded("accounts", _VERSION)
        changed_at = plan.began
        one = nodes["nodes"][0]
        nodes["nodes"] = [
            one | {"name": name, "hostname": name, "address": name} for name in plan.names
        ]
        nodes["last_update"]["number"] = changed_at
        projects = sorted({project_of(number) for number in range(USERS)})
        accounts["accounts"] += [
            accounts["accounts"][-1] | {"name": each, "description": each} for each in projects
        ]
        project, user = associations["associations"][-2:]
        associations["associations"] += [
            project | {"account": each, "id": 900 + number} for number, each in enumerate(projects)
        ]
        associations["associations"] += [
            user | {"account": project_of(number), "user": owner_of(number), "id": 1000 + number}
            for number in range(USERS)
        ]
        for each in associations["associations"]:
            each["cluster"] = CLUSTER
        self._changed_at = changed_at
        self._bodies = {
            "/openapi/v3": json.dumps(recorded("openapi", _VERSION)).encode(),
            f"/slurm/{_VERSION}/nodes": json.dumps(nodes).encode(),
            f"/slurm/{_VERSION}/diag": json.dumps(recorded("diag", _VERSION)).encode(),
            f"/slurmdb/{_VERSION}/accounts": json.dumps(accounts).encode(),
            f"/slurmdb/{_VERSION}/associations": json.dumps(associations).encode(),
            f"/slurmdb/{_VERSION}/jobs": b'{"jobs": [], "errors": [], "warnings": []}',
            f"/slurm/{_VERSION}/jobs": b'{"jobs": [], "errors": [], "warnings": []}',
        }

    async def __call__(
        self,
        scope: Mapping[str, Any],
        _receive: Callable[[], Awaitable[Any]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """One request, as ASGI has it."""
        asked = parse_qs(scope["query_string"].decode())
        body = self._bodies.get(scope["path"].rstrip("/"))
        status = 404 if body is None else 200
        if int(asked.get("update_time", ["0"])[0]) > self._changed_at:
            status, body = 304, b""
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body or b""})


async def serve_rest(socket: Path, plan: Plan) -> None:
    """Until the process ends."""
    end_with_the_first()
    config = uvicorn.Config(
        MadeUpRest(plan), uds=str(socket), log_level="error", lifespan="off", access_log=False
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not serving.done():
        if server.started:
            say({"up": True})
        await asyncio.sleep(TELL_S)
    await serving
