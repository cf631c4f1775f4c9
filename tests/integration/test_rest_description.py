"""REST against its own description: schemathesis asks what the description allows, and more."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    positive_data_acceptance,
    response_schema_conformance,
    unsupported_method,
)

from lattice.base.clock import SystemClock
from tests.examples import examples
from tests.fakes.cluster import populated
from tests.fakes.server import bearer, composed

# What OpenAPI has no words for: health and discovery are public although one scheme stands over
# all, and a range of time must not end before it begins.
UNSAID = {
    "everywhere": [ignored_auth, unsupported_method],
    "/v1/history": [positive_data_acceptance],
    # What a script, a set of nodes or a node's name may be is more than a schema can say.
    "POST": [positive_data_acceptance],
    # Nor that the usual mode has no end, and how long another may last.
    "PUT": [positive_data_acceptance],
    "/v1/nodes/{name}/ping": [positive_data_acceptance],
    # A terminal is a WebSocket, which a plain request is not.
    "/v1/allocations/{id}/attach": [positive_data_acceptance],
    # Nor what a cursor of ours is, a pattern that can be read, or which streams a job has.
    "/v1/allocations/{id}/logs": [positive_data_acceptance],
    "/v1/allocations/{id}/logs/streams": [positive_data_acceptance],
    # Nor what a length of time is, a query, or which attempts a job has.
    "/v1/allocations/{id}/metrics": [positive_data_acceptance],
    "/v1/allocations/{id}/report": [positive_data_acceptance],
    # Nor which jobs can be looked at, or beside each other.
    **{
        f"/v1/allocations/{{id}}/{rest}": [positive_data_acceptance]
        for rest in (
            "diagnostics",
            "diagnostics/network",
            "diagnostics/storage",
            "diagnostics/gpu",
            "stacks",
        )
    },
    "/v1/compare": [positive_data_acceptance],
    # Nor that Prometheus's clients are refused in the form they know.
    **{
        f"/prometheus/api/v1/{rest}": [positive_data_acceptance, response_schema_conformance]
        for rest in ("query", "query_range", "series", "labels", "label/{name}/values")
    },
    # Nor that what is refused is told as JSON where events or bytes were asked for.
    **{
        f"/v1/allocations/{{id}}/logs/{rest}": [
            positive_data_acceptance,
            content_type_conformance,
            response_schema_conformance,
        ]
        for rest in ("stream", "raw")
    },
}

# A job that runs is told of without end.
ENDLESS = {"/v1/allocations/{id}/watch"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The real application on a real socket, around a scheduler in memory."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    ready = threading.Event()
    running: list[uvicorn.Server] = []

    async def serve() -> None:
        faces = composed(populated(SystemClock()))
        web = uvicorn.Server(
            uvicorn.Config(faces.rest, log_config=None, lifespan="off", access_log=False)
        )
        running.append(web)
        ready.set()
        await web.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="rest")
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running[0].should_exit = True
        thread.join(10)
        listener.close()


@pytest.mark.timeout(300)
def test_every_operation_keeps_its_description(server: str) -> None:
    description = schemathesis.openapi.from_url(f"{server}/v1/openapi.json")
    operations = [found.ok() for found in description.get_all_operations()]
    assert len(operations) >= 9
    for operation in operations:
        if operation.path not in ENDLESS:
            _keeps_its_description(operation)


def _keeps_its_description(operation: APIOperation) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=examples(0.2),
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Case) -> None:
        case.call_and_validate(
            headers=bearer("sub-alice", preferred_username="alice", scope="admin"),
            excluded_checks=UNSAID.get(operation.path, [])
            + UNSAID.get(operation.method.upper(), [])
            + UNSAID["everywhere"],
            timeout=30,
        )

    holds()
