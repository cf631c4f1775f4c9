"""How long gRPC calls take is shown by rpc and code."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc import aio

from lattice.wire.v1 import health_pb2, health_pb2_grpc
from tests.eventually import eventually_async
from tests.fakes.server import composed, token


@pytest.mark.spec("OPS-8")
async def test_calls_are_timed_by_rpc_and_code(tmp_path: Path) -> None:
    faces = composed()
    address = f"unix:{tmp_path}/grpc.sock"
    faces.grpc.add_insecure_port(address)
    await faces.grpc.start()
    bearer = (("authorization", f"Bearer {token('olga', scope='operator')}"),)
    try:
        async with aio.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthServiceStub(channel)
            await stub.GetHealth(health_pb2.GetHealthRequest())
            with pytest.raises(aio.AioRpcError) as refused:
                await stub.GetMetrics(health_pb2.GetMetricsRequest())
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

            async def shown() -> str:
                request = health_pb2.GetMetricsRequest()
                text: str = (await stub.GetMetrics(request, metadata=bearer)).text
                return text

            # A call is counted when its handler has ended, which its caller may notice first.
            await shown()
            found = ""

            async def are_counted() -> bool:
                nonlocal found
                found = await shown()
                return count("GetHealth", "OK", found) == 1

            await eventually_async(are_counted)
            assert count("GetMetrics", "UNAUTHENTICATED", found) == 1
            assert count("GetMetrics", "OK", found) >= 1
    finally:
        await faces.grpc.stop(None)


def count(method: str, code: str, text: str) -> float:
    labels = f'{{code="{code}",rpc="lattice.v1.HealthService/{method}"}}'
    name = f"lattice_grpc_request_seconds_count{labels} "
    return sum(float(line[len(name) :]) for line in text.splitlines() if line.startswith(name))
