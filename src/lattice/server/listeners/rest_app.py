"""The REST application: guarded routes, one shape of error, one id per request.

It offers nothing by itself; the features do, through `GuardedRoutes`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lattice import __version__
from lattice.access.actor import Actor
from lattice.access.permission import Permission
from lattice.base.clock import Clock
from lattice.base.errors import (
    STATUS,
    InternalError,
    LatticeError,
    NotFound,
    Unavailable,
    UsageError,
)
from lattice.base.logs import request_context
from lattice.base.operation import PREFIX
from lattice.foundation.own_metrics import OwnMetrics
from lattice.server.listeners.public_pace import PER_MINUTE, PublicPace
from lattice.wire.guard import GuardedRoutes
from lattice.wire.rest import CLIENT_LEFT, ClientLeft
from lattice.wire.status import SECURITY_HEADERS, ErrorBody, http_error

_TITLE = "Lattice"
_EVENTS = "text/event-stream"
_REF = "#/components/schemas/{model}"


class Description:
    """The description as JSON text. It takes half a second, so a thread builds it."""

    def __init__(self, routes: Callable[[], GuardedRoutes[Actor]]) -> None:
        """`routes` is called at the first request: features offer theirs after this is made."""
        self._routes = routes
        self._building = asyncio.Lock()
        self._text = ""

    async def text(self) -> str:
        """The same text at every call."""
        async with self._building:
            if not self._text:
                self._text = await asyncio.to_thread(describe, self._routes())
        return self._text


def describe(routes: GuardedRoutes[Actor]) -> str:
    """Describe the routes, with the failures that all of them share.

    FastAPI's 422 is removed: invalid input is 400 here.
    """
    description = get_openapi(title=_TITLE, version=__version__, routes=routes.described().routes)
    for path in description["paths"].values():
        for operation in path.values():
            responses = operation["responses"]
            responses.pop("422", None)
            operation["responses"] = {**_failures(responses), **responses}
    components = description.setdefault("components", {})
    schemas = {**components.get("schemas", {}), **_error_schemas()}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["schemas"] = dict(sorted(schemas.items()))
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    }
    description["security"] = [{"bearer": []}]
    return json.dumps(description)


def _failures(responses: dict[str, Any]) -> dict[str, Any]:
    # A stream of events has one content type for all its responses.
    success = responses.get("200", {}).get("content", {})
    media = _EVENTS if _EVENTS in success else "application/json"
    content = {media: {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}}
    return {
        str(status.http): {"description": HTTPStatus(status.http).phrase, "content": content}
        for status in STATUS.values()
    }


def _error_schemas() -> dict[str, Any]:
    schema = TypeAdapter(ErrorBody).json_schema(ref_template=_REF, mode="serialization")
    return {**schema.pop("$defs"), ErrorBody.__name__: schema}


_API = "/api"
_SECOND_PREFIX = f"{_API}{PREFIX}/"
"""Rewritten to `PREFIX`."""
_ACCEPTED_ID = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def build_app(
    routes: GuardedRoutes[Actor],
    figures: OwnMetrics,
    log: structlog.stdlib.BoundLogger,
    clock: Clock,
    public_per_minute: int = PER_MINUTE,
) -> FastAPI:
    """The application around routes that the features have offered."""
    # FastAPI's own documentation pages are outside the guard, so they are off.
    app = FastAPI(
        title=_TITLE,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # It would respond with an address from the caller's `Host` header.
        redirect_slashes=False,
    )
    app.router.routes.extend(routes.router.routes)
    app.add_exception_handler(LatticeError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientLeft, _on_client_left)
    app.add_middleware(
        PublicPace,
        paths=routes.paths_of(Permission.PUBLIC.value),
        clock=clock,
        refused=lambda kind: figures.limit_refusals.labels(kind).inc(),
        answer=_answer,
        per_minute=public_per_minute,
    )
    app.add_middleware(SecondPrefix)
    app.add_middleware(Envelope, figures=figures, log=log)
    return app


class SecondPrefix:
    """Serves `/api/v1/…` as `/v1/…`, so that each route is registered once.

    The envelope around it still logs the path that the caller sent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"} and scope["path"].startswith(_SECOND_PREFIX):
            raw = scope.get("raw_path") or b""
            scope = {
                **scope,
                "path": scope["path"].removeprefix(_API),
                "raw_path": raw.removeprefix(_API.encode()),
            }
        await self._app(scope, receive, send)


class Envelope:
    """Around every request: its id, its log line, its time, and security headers.

    Plain ASGI, so that a stream passes unchanged.
    """

    def __init__(
        self, app: ASGIApp, figures: OwnMetrics, log: structlog.stdlib.BoundLogger
    ) -> None:
        self._app = app
        self._figures = figures
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        request.state.request_id = _request_id(request)
        begun = time.monotonic()
        status = 0

        async def sealed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers["X-Request-Id"] = request.state.request_id
            await send(message)

        try:
            with request_context(request.state.request_id):
                await self._app(scope, receive, sealed)
        except asyncio.CancelledError:
            # The grace of a stop is over. Uvicorn would log a defect for each request.
            if status == 0:
                stopping = Unavailable("This server is stopping.", hint="Try again in a minute.")
                await _answer(request, stopping)(scope, receive, sealed)
        except Exception:  # noqa: BLE001 - the last handler
            # The log gets the defect; the caller only learns that there was one.
            self._log.exception("defect", path=request.url.path)
            if status == 0:
                failure = _answer(request, InternalError("Lattice failed here."))
                await failure(scope, receive, sealed)
        self._note(request, status, time.monotonic() - begun)

    def _note(self, request: Request, status: int, seconds: float) -> None:
        rpc = getattr(request.state, "rpc", "")
        self._figures.request_seconds.labels(rpc, str(status)).observe(seconds)
        self._log.info(
            "request",
            rpc=rpc,
            path=request.url.path,
            status=status,
            seconds=round(seconds, 4),
            sub=getattr(getattr(request.state, "caller", None), "sub", ""),
            request_id=request.state.request_id,
        )


def _request_id(request: Request) -> str:
    offered = request.headers.get("x-request-id", "")
    if 0 < len(offered) <= 64 and _ACCEPTED_ID.issuperset(offered):
        return offered
    return uuid4().hex


def _answer(request: Request, error: LatticeError) -> JSONResponse:
    status, body, headers = http_error(error, request.state.request_id)
    return JSONResponse(body, status_code=status, headers=headers)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, LatticeError)
    return _answer(request, error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(_problem(each) for each in error.errors())
    return _answer(request, UsageError(f"The request is not valid: {problems}."))


def _problem(detail: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in detail["loc"][1:])
    return f"{field}: {detail['msg'].lower()}"


async def _on_client_left(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return Response(status_code=CLIENT_LEFT)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _answer(request, NotFound("No such path.", hint="See /v1/openapi.json."))
    answer = _answer(request, UsageError(str(error.detail)))
    answer.status_code = error.status_code
    answer.headers.update(error.headers or {})
    return answer
