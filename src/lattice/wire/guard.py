"""The one guard of every handler, over HTTP and over gRPC alike.

A feature can only offer a route through `GuardedRoutes`, which needs the name of an rpc. An rpc is
only reached through `GuardInterceptor`. Both look up the declared permission and call the same
`Authorise` before a handler runs, so an unguarded handler is impossible. Only the protos declare
permissions. A method without one is an error before anything listens.

The body of a request is bounded while it is read, then strictly decoded. FastAPI would read a whole
body before any guard runs. So a route with a body reads it here, after the caller is known, and
never more of it than the route allows.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from fastapi import APIRouter, Depends, Request
from google.protobuf.descriptor import FileDescriptor
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect
from starlette.routing import WebSocketRoute

from lattice.base.caller_address import address_of_peer, set_caller_address
from lattice.base.errors import PermissionRefused, UsageError
from lattice.base.operation import PREFIX
from lattice.wire import v1
from lattice.wire.interceptor import (
    RECHECK_EVERY_S,
    Context,
    Finished,
    GuardingInterceptor,
    NextChange,
    never_changes,
    not_timed,
)
from lattice.wire.v1 import options_pb2
from lattice.wire.websocket import SocketCaller, SocketEndpoint, SocketLine, SocketRules

T = TypeVar("T")
LARGEST_BYTES = 64 * 1024
# What a browser sends for a request that another site's page made.
_FOREIGN = frozenset({"cross-site", "same-site"})
Caller = TypeVar("Caller")
Caller_co = TypeVar("Caller_co", covariant=True)
_CALLER: ContextVar[Any] = ContextVar("lattice_grpc_caller")


class UndeclaredPermission(Exception):
    """An rpc without a permission, or one that does not exist."""


def declared_permissions() -> dict[str, str]:
    """Every rpc as `lattice.v1.Service/Method`, with the name of its permission."""
    table: dict[str, str] = {}
    for module in pkgutil.iter_modules(v1.__path__):
        if module.name.endswith("_pb2"):
            table.update(_of_file(import_module(f"{v1.__name__}.{module.name}").DESCRIPTOR))
    return table


def _of_file(file: FileDescriptor) -> dict[str, str]:
    table: dict[str, str] = {}
    for service in file.services_by_name.values():
        for method in service.methods:
            value = method.GetOptions().Extensions[options_pb2.permission]
            rpc = f"{service.full_name}/{method.name}"
            if value == options_pb2.PERMISSION_UNSPECIFIED:
                raise UndeclaredPermission(f"{rpc} declares no permission")
            table[rpc] = options_pb2.Permission.Name(value)
    return table


def refuse_foreign_page(request: Request) -> None:
    """Raise `PermissionRefused` if another site's page sends this: it would act as its visitor."""
    if request.headers.get("sec-fetch-site", "").lower() in _FOREIGN:
        raise PermissionRefused(
            "A page of another site may not do this.", hint="Call the server directly."
        )


async def read_body(request: Request, kind: type[T], largest_bytes: int) -> T:
    """The JSON document as the dataclass; unknown names and wrong types raise `UsageError`."""
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/json":
        raise UsageError("The body is not said to be JSON.", hint="Send application/json.")
    raw = await _bytes(request, largest_bytes)
    try:
        document = msgspec.json.decode(raw)
        value = msgspec.convert(document, kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"The body is not valid: {error}.") from None
    unknown = sorted(set(document) - {each.name for each in fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise UsageError(f"The body has a name that is not known: {unknown[0][:60]!r}.")
    return value


async def _bytes(request: Request, largest_bytes: int) -> bytes:
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > largest_bytes:
                raise UsageError(f"The body is larger than {largest_bytes} bytes.")
            pieces.append(piece)
    except ClientDisconnect:
        # No defect: the client disconnected, or was too slow.
        raise UsageError("The body did not arrive whole.", hint="Send it again.") from None
    return b"".join(pieces)


def described_body(kind: type) -> dict[str, Any]:
    schema = TypeAdapter(kind).json_schema()
    schema["additionalProperties"] = False
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@dataclass(frozen=True, slots=True)
class _Route:
    """One route as a feature has offered it."""

    path: str
    handler: Callable[..., Awaitable[Any]]
    options: dict[str, Any]
    answer: Any
    body: type | None

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route(self.path, self.handler, response_model=None, **self.options)

    def describe_in(self, router: APIRouter) -> None:
        router.add_api_route(
            self.path,
            self.handler,
            response_model=self.answer,
            openapi_extra=described_body(self.body) if self.body else None,
            **self.options,
        )


class Authorise(Protocol[Caller_co]):
    """Decides on one call: returns the verified caller, or raises an error of the tree."""

    async def __call__(self, *, rpc: str, permission: str, authorization: str) -> Caller_co: ...


class GuardedRoutes(Generic[Caller]):
    """A collection of REST routes. Each names an rpc and inherits its permission."""

    def __init__(
        self,
        permissions: Mapping[str, str],
        authorise: Authorise[Caller],
        on_defect: Callable[[str, BaseException], None] = lambda *_: None,
        next_change: NextChange = never_changes,
    ) -> None:
        """`next_change`: when open streams are to be authorised again."""
        self._permissions = permissions
        self._authorise = authorise
        self._on_defect = on_defect
        self.next_change = next_change
        self.router = APIRouter()
        self._offered: list[_Route] = []
        self.rpc_of_route: dict[tuple[str, str], str] = {}
        """Of all routes, by method and path."""

    def get(
        self, path: str, *, rpc: str, bare: bool = False, answer: Any = None, **options: Any
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """Offer a GET. `bare` routes are at the root, without a version prefix.

        `answer` is the type that the description shows.
        """
        return self._offer("GET", path, rpc, bare, answer, None, options)

    def change(
        self,
        method: str,
        path: str,
        *,
        rpc: str,
        body: type | None = None,
        bare: bool = False,
        answer: Any = None,
        **options: Any,
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """Offer a POST, PUT, PATCH or DELETE. Its handler reads a `body` with `self.body`.

        `bare` and `answer` as for a GET.
        """
        if method not in {"POST", "PUT", "PATCH", "DELETE"}:
            raise ValueError(f"{method} changes nothing")
        return self._offer(method, path, rpc, bare, answer, body, options)

    def socket(
        self,
        path: str,
        handler: Callable[[SocketCaller[Caller], Mapping[str, str], SocketLine], Awaitable[None]],
        *,
        rpc: str,
        rules: SocketRules[Caller],
    ) -> None:
        """Offer a WebSocket. The caller is verified before the upgrade."""
        permission = self._permissions.get(rpc)
        if permission is None:
            raise UndeclaredPermission(f"WebSocket {path}: {rpc} declares no permission")
        endpoint = SocketEndpoint(
            rules, self.authorised(rpc), handler, lambda defect: self._on_defect(rpc, defect)
        )
        self.router.routes.append(WebSocketRoute(PREFIX + path, endpoint))

    def authorised(self, rpc: str) -> Callable[[str], Awaitable[Caller]]:
        """Authorises a token for one rpc, for handlers that check it again themselves."""

        async def authorise(authorization: str) -> Caller:
            return await self._authorise(
                rpc=rpc, permission=self._permissions[rpc], authorization=authorization
            )

        return authorise

    def _offer(
        self,
        method: str,
        path: str,
        rpc: str,
        bare: bool,
        answer: Any,
        body: type | None,
        options: dict[str, Any],
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        permission = self._permissions.get(rpc)
        if permission is None:
            raise UndeclaredPermission(f"{method} {path} names {rpc}, which declares no permission")
        guard = Depends(self._guard(rpc, permission, foreign_pages=method == "GET"))
        full_path = path if bare else PREFIX + path
        # Failures are the same for every route, so the description of the API has them once.
        options = {
            "methods": [method],
            "dependencies": [guard],
            "operation_id": rpc.rpartition("/")[2],
            **options,
        }

        def offer(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            self.rpc_of_route[method, full_path] = rpc
            route = _Route(full_path, handler, options, answer, body)
            self._offered.append(route)
            route.add_to(self.router)
            return handler

        return offer

    def described(self) -> APIRouter:
        """The routes with the schemas of their answers and bodies, which take long to make.

        Only a description needs them: handlers encode and decode by themselves.
        """
        router = APIRouter()
        for each in self._offered:
            each.describe_in(router)
        return router

    async def body(self, request: Request, kind: type[T], largest_bytes: int = LARGEST_BYTES) -> T:
        """The body of the request, read only after the guard."""
        return await read_body(request, kind, largest_bytes)

    def paths_of(self, permission: str) -> frozenset[str]:
        """The paths of the routes that need this permission."""
        return frozenset(
            path
            for (_, path), rpc in self.rpc_of_route.items()
            if self._permissions[rpc] == permission
        )

    def caller(self, request: Request) -> Caller:
        """The verified caller of a request that passed the guard."""
        return cast("Caller", request.state.caller)

    async def recheck(self, request: Request) -> None:
        """Authorise a call again that is still running; raises as at its beginning."""
        rpc = request.state.rpc
        await self._authorise(
            rpc=rpc,
            permission=self._permissions[rpc],
            authorization=request.headers.get("authorization", ""),
        )

    def defect(self, request: Request, error: BaseException) -> None:
        """Report a defect after the status line was sent."""
        self._on_defect(request.state.rpc, error)

    def _guard(
        self, rpc: str, permission: str, *, foreign_pages: bool
    ) -> Callable[[Request], Awaitable[None]]:
        async def guard(request: Request) -> None:
            request.state.rpc = rpc
            set_caller_address(request.client.host if request.client else "")
            if not foreign_pages:
                refuse_foreign_page(request)
            request.state.caller = await self._authorise(
                rpc=rpc,
                permission=permission,
                authorization=request.headers.get("authorization", ""),
            )

        return guard


def grpc_caller() -> Any:
    """The verified caller of the rpc that runs in this task."""
    return _CALLER.get()


class GuardInterceptor(GuardingInterceptor):
    """Authorises each rpc of the people's listener, and long streams again. Default is deny."""

    def __init__(
        self,
        permissions: Mapping[str, str],
        authorise: Authorise[Any],
        on_defect: Callable[[str, BaseException], None],
        *,
        recheck_every_s: float = RECHECK_EVERY_S,
        next_change: NextChange = never_changes,
        finished: Finished = not_timed,
    ) -> None:
        super().__init__(on_defect, recheck_every_s, next_change, finished)
        self._permissions = permissions
        self._authorise = authorise

    async def admit(self, rpc: str, context: Context) -> None:
        """A stream with an expired token ends here; its caller continues with a fresh one."""
        permission = self._permissions.get(rpc)
        if permission is None:
            raise PermissionRefused(f"{rpc} declares no permission.")
        set_caller_address(address_of_peer(context.peer()))
        _CALLER.set(
            await self._authorise(
                rpc=rpc, permission=permission, authorization=_authorization(context)
            )
        )


def _authorization(context: Context) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, str) else ""
    return ""
