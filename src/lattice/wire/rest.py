"""Guarded REST routes, made from operations."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, field, make_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from fastapi import Header, Path, Query, Request
from starlette.responses import Response

from lattice.base.choices import one_of
from lattice.base.operation import (
    AnyBinding,
    Operation,
    RequestField,
    StreamBinding,
    in_path,
    request_fields,
)
from lattice.wire.events import DESCRIPTION, EventStream
from lattice.wire.guard import GuardedRoutes

T = TypeVar("T")
CLIENT_LEFT = 499
"""A status for the log alone; the client is gone."""
Caller = TypeVar("Caller")
_ENCODER = msgspec.json.Encoder()
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_REFUSED = re.compile(r"0(?:\.0{0,3})?")
"""A quality of zero."""


def offer(routes: GuardedRoutes[Caller], *bindings: AnyBinding) -> None:
    """Add a route for each operation."""
    for each in bindings:
        if isinstance(each, StreamBinding):
            _offer_stream(routes, each)
        else:
            _offer(routes, each.operation, each.handler)


def _offer(
    routes: GuardedRoutes[Caller],
    operation: Operation[Any, Any],
    handler: Callable[[Any, Any], Awaitable[Any]],
) -> None:
    body = _body_type(operation)

    async def answer(request: Request, **given: Any) -> Response:
        if body is not None:
            content: Any = await routes.body(request, body, operation.largest_body_bytes)
            given |= {each.name: getattr(content, each.name) for each in operation.body_fields()}
        asked = handler(routes.caller(request), _request(operation.request, given))
        found = await (while_connected(request, asked) if operation.stops_with_caller else asked)
        # Pydantic would take longer to encode a large answer than its service took to find it.
        return Response(_ENCODER.encode(found), media_type="application/json")

    name = operation.rest_id or operation.rpc.rpartition("/")[2]
    carried = {each.name for each in operation.body_fields()}
    _describe(answer, name, _parameters(operation.path, operation.request, carried))
    options: dict[str, Any] = {
        "rpc": operation.rpc,
        "bare": operation.at_root,
        "answer": operation.answer,
        "operation_id": name,
    }
    if operation.method == "GET":
        routes.get(operation.path, **options)(answer)
    else:
        routes.change(operation.method, operation.path, body=body, **options)(answer)


def _offer_stream(routes: GuardedRoutes[Caller], binding: StreamBinding[Any, Any]) -> None:
    operation = binding.operation

    async def answer(request: Request, **given: Any) -> Response:
        if "cursor" in given:
            # A browser that reconnects sends its position in this header.
            given["cursor"] = given["cursor"] or request.headers.get("last-event-id", "")
        asked = _request(operation.request, given)
        caller, writer, media_type, accepted = routes.caller(request), None, None, None
        if operation.binary and binding.binary:
            accept = request.headers.get("accept", "")
            accepted = accepted_parameters(accept, operation.binary.media_type)
        if operation.binary and binding.binary and accepted is not None:
            records = await binding.binary.handler(caller, asked, accepted)
            writer, media_type = binding.binary.writer(), operation.binary.media_type
        else:
            records = await binding.handler(caller, asked)
        return EventStream(
            records,
            request.state.request_id,
            lambda: routes.recheck(request),
            lambda error: routes.defect(request, error),
            routes.next_change,
            writer,
            media_type,
        )

    name = operation.rpc.rpartition("/")[2]
    _describe(answer, name, _parameters(operation.path, operation.request, set()))
    routes.get(
        operation.path,
        rpc=operation.rpc,
        response_class=EventStream,
        status_code=200,
        responses={200: DESCRIPTION},
    )(answer)


def accepted_parameters(accept: str, media_type: str) -> dict[str, str] | None:
    """The parameters of a media type in an `Accept` header; None if it is not accepted.

    A media type must be named: a wildcard means what every client can read.
    """
    for each in accept.split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        if name == media_type:
            found = dict(_pair(part) for part in parameters)
            return None if _REFUSED.fullmatch(found.get("q", "1")) else found
    return None


def _pair(parameter: str) -> tuple[str, str]:
    name, _, value = parameter.partition("=")
    return name.strip(), value.strip()


def _describe(
    answer: Callable[..., Awaitable[Response]], name: str, parameters: list[inspect.Parameter]
) -> None:
    """Set what FastAPI reads to find and describe the parameters of a route."""
    answer.__name__ = _CAPITAL.sub("_", name).lower()
    answer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]


def _body_type(operation: Operation[Any, Any]) -> type | None:
    carried = operation.body_fields()
    if not carried:
        return None
    required = [(each.name, each.type) for each in carried if each.default is MISSING]
    others = [
        (each.name, each.type, field(default_factory=dict) if each.default == {} else each.default)
        for each in carried
        if each.default is not MISSING
    ]
    kind = make_dataclass(operation.request.__name__, [*required, *others], frozen=True)
    kind.__doc__ = operation.request.__doc__
    return kind


def _parameters(path: str, kind: type, carried: AbstractSet[str]) -> list[inspect.Parameter]:
    """The parameters of path, query and header; `carried` are the fields of the body."""
    request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    others = (
        each
        for each in request_fields(kind)
        if each.name not in carried and not each.rule.grpc_only
    )
    return [request, *(_parameter(path, each) for each in others)]


def _parameter(path: str, field: RequestField) -> inspect.Parameter:
    rule = field.rule
    limits = {
        "ge": rule.least,
        "le": rule.most,
        "lt": rule.below,
        "max_length": rule.longest,
        "pattern": rule.pattern or None,
    }
    options: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    if field.wire_name != field.name:
        options["alias"] = field.wire_name.lower() if rule.header else field.wire_name
    if in_path(path, field):
        source, default = Path(**options), inspect.Parameter.empty
    else:
        source = Header(**options) if rule.header else Query(**options)
        default = inspect.Parameter.empty if field.default is MISSING else _shown_default(field)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[_shown_type(field), source],
        default=default,
    )


def _request(kind: type, given: dict[str, Any]) -> Any:
    known = {each.name: each for each in request_fields(kind)}
    return kind(**{name: _value(known[name], value) for name, value in given.items()})


def _members(field: RequestField) -> Any:
    """The type of a list's members; None if the field is no list."""
    if get_origin(field.type) in {tuple, frozenset}:
        return get_args(field.type)[0]
    return None


def _shown_type(field: RequestField) -> Any:
    if field.rule.read is not None or field.rule.commas:
        return str
    members = _members(field)
    return field.type if members is None else list.__class_getitem__(members)


def _shown_default(field: RequestField) -> Any:
    if field.rule.read is not None or field.rule.commas:
        return ""
    return field.default if _members(field) is None else list(field.default)


def _value(field: RequestField, value: Any) -> Any:
    """The value of a field from what FastAPI read."""
    rule = field.rule
    if rule.read is not None:
        return rule.read(value) if value else field.default
    if rule.commas:
        value = [each.strip() for each in value.split(",") if each.strip()]
    if (members := _members(field)) is not None:
        return get_origin(field.type)(_member(members, each) for each in value)
    if isinstance(value, datetime):
        # A time without a zone is taken as UTC.
        return value.replace(tzinfo=value.tzinfo or UTC)
    return value


def _member(kind: Any, value: Any) -> Any:
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, StrEnum):
        return one_of(kind, value)
    return value


class ClientLeft(Exception):
    """The client closed the connection before the response."""


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The work's result, or `ClientLeft` after the work was cancelled.

    For requests without a body: other input is ignored.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_left(request), name="disconnect")
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
