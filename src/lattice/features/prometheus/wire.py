"""The feature over HTTP and gRPC.

HTTP is as in Prometheus: GET with parameters, or POST with a form. Unknown parameters are refused,
since a store might know them. Errors have Prometheus' format, so that its clients show the message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from fastapi import Path, Request
from starlette.responses import Response

from lattice.access.actor import Actor
from lattice.base.errors import LatticeError, RateLimited, UsageError, status_of
from lattice.features.prometheus.model import LONGEST_QUERY, PrometheusQuestion
from lattice.features.prometheus.service.queries import Answer, PrometheusService
from lattice.wire.convert import value_of
from lattice.wire.guard import GuardedRoutes, grpc_caller
from lattice.wire.v1 import prometheus_pb2 as pb
from lattice.wire.v1 import prometheus_pb2_grpc


class PrometheusRpc(prometheus_pb2_grpc.PrometheusServiceServicer):
    """A thin layer; the guard has verified the caller."""

    def __init__(self, service: PrometheusService) -> None:
        self._service = service

    async def QueryInstant(self, request: pb.PrometheusRequest, context: Any) -> pb.PrometheusReply:
        return _reply(await self._service.query(grpc_caller(), _sent(request)))

    async def QueryRange(self, request: pb.PrometheusRequest, context: Any) -> pb.PrometheusReply:
        return _reply(await self._service.query_range(grpc_caller(), _sent(request)))

    async def ListSeries(self, request: pb.PrometheusRequest, context: Any) -> pb.PrometheusReply:
        return _reply(await self._service.series(grpc_caller(), _sent(request)))

    async def ListLabels(self, request: pb.PrometheusRequest, context: Any) -> pb.PrometheusReply:
        return _reply(await self._service.labels(grpc_caller(), _sent(request)))

    async def ListLabelValues(
        self, request: pb.PrometheusRequest, context: Any
    ) -> pb.PrometheusReply:
        return _reply(await self._service.label_values(grpc_caller(), _sent(request)))


def _sent(request: pb.PrometheusRequest) -> PrometheusQuestion:
    return value_of(request, PrometheusQuestion)


def _reply(answer: Answer) -> pb.PrometheusReply:
    return pb.PrometheusReply(json=msgspec.json.encode(answer).decode())


_LARGEST_FORM_BYTES = 4 * LONGEST_QUERY
_RPC = "lattice.v1.PrometheusService/"
_TAKEN = frozenset({"query", "time", "start", "end", "step"})
_PASSED_OVER = frozenset({"timeout", "limit", "stats", "dedup", "partial_response", "nocache"})
"""Parameters that clients also send; none of them reaches the store."""
_ERRORS = {400: "bad_data", 424: "execution", 429: "too_many_requests", 503: "unavailable"}

Ask = Callable[[Actor, PrometheusQuestion], Awaitable[Answer]]


def offer(routes: GuardedRoutes[Actor], service: PrometheusService) -> None:
    """Register the feature's routes."""
    _offer(routes, "query", "QueryInstant", service.query)
    _offer(routes, "query_range", "QueryRange", service.query_range)
    _offer(routes, "series", "ListSeries", service.series)
    _offer(routes, "labels", "ListLabels", service.labels)

    @routes.get(
        "/prometheus/api/v1/label/{name}/values",
        rpc=_RPC + "ListLabelValues",
        bare=True,
    )
    async def label_values(request: Request, name: str = Path(max_length=128)) -> Response:
        return await _answered(routes, request, service.label_values, name)


def _offer(routes: GuardedRoutes[Actor], call: str, rpc: str, ask: Ask) -> None:
    path = f"/prometheus/api/v1/{call}"

    async def handle(request: Request) -> Response:
        return await _answered(routes, request, ask)

    routes.get(path, rpc=_RPC + rpc, bare=True)(handle)
    # POST with a form: a query may be too long for a URL.
    by_form = f"{rpc}ByForm"
    routes.change("POST", path, rpc=_RPC + rpc, bare=True, operation_id=by_form)(handle)


async def _answered(
    routes: GuardedRoutes[Actor], request: Request, ask: Ask, name: str = ""
) -> Response:
    try:
        pairs = [*request.query_params.multi_items(), *await _form(request)]
        answer = await ask(routes.caller(request), _question(pairs, name))
    except LatticeError as problem:
        return _refused(problem)
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _question(pairs: Iterable[tuple[str, str]], name: str) -> PrometheusQuestion:
    found: dict[str, str] = {}
    match: list[str] = []
    for key, value in pairs:
        if key == "match[]":
            match.append(value)
        elif key in _TAKEN:
            if key in found:
                raise UsageError(f"{key} is said twice.")
            found[key] = value
        elif key not in _PASSED_OVER:
            raise UsageError(f"The parameter {key[:40]!r} is not known here.")
    return PrometheusQuestion(**found, match=tuple(match), name=name)


async def _form(request: Request) -> list[tuple[str, str]]:
    if request.method != "POST":
        return []
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/x-www-form-urlencoded":
        raise UsageError("The body is not said to be a form.")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _LARGEST_FORM_BYTES:
            raise UsageError(f"The body is larger than {_LARGEST_FORM_BYTES} bytes.")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise UsageError("The body is no form.") from None


def _refused(problem: LatticeError) -> Response:
    status = status_of(problem).http
    message = f"{problem.message} {problem.hint}" if problem.hint else problem.message
    body = {"status": "error", "errorType": _ERRORS.get(status, "internal"), "error": message}
    headers = {}
    if isinstance(problem, RateLimited) and problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    return Response(msgspec.json.encode(body), status, headers, "application/json")
