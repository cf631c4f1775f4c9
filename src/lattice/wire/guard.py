"""The one door to every handler, over HTTP and over gRPC alike.

A feature can only offer a route through `GuardedRoutes`, which needs the name of an rpc; an rpc
is only reached through `GuardInterceptor`. Both look up the declared permission and ask the same
`Authorise` before a handler runs, so there is no way to add one that nobody guards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import grpc
from fastapi import APIRouter, Depends, Request
from grpc import aio

from lattice.base.errors import STATUS, InternalError, LatticeError, PermissionRefused
from lattice.wire.permissions import UndeclaredPermission
from lattice.wire.status import ErrorBody, grpc_status

Caller = TypeVar("Caller")
Caller_co = TypeVar("Caller_co", covariant=True)

# Generic for the type checker only, hence the quotes.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Behaviour: TypeAlias = "Callable[[Any, aio.ServicerContext[Any, Any]], Awaitable[Any]]"

# Both spellings are served; the first is the one the description shows.
PREFIXES = ("/v1", "/api/v1")


class Authorise(Protocol[Caller_co]):
    """Decides over one call: gives the verified caller, or raises an error of the tree."""

    async def __call__(self, *, rpc: str, permission: str, authorization: str) -> Caller_co: ...


class GuardedRoutes(Generic[Caller]):
    """A collection of REST routes, each of which names the rpc whose permission it inherits."""

    def __init__(self, permissions: Mapping[str, str], authorise: Authorise[Caller]) -> None:
        self._permissions = permissions
        self._authorise = authorise
        self.router = APIRouter()
        self._failures: dict[int | str, dict[str, Any]] = {
            status.http: {"model": ErrorBody} for status in STATUS.values()
        }
        self.rpc_of_path: dict[str, str] = {}

    def get(
        self, path: str, *, rpc: str, bare: bool = False, **options: Any
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """Offer a GET. `bare` routes stand at the root, without a version before them."""
        permission = self._permissions.get(rpc)
        if permission is None:
            raise UndeclaredPermission(f"GET {path} names {rpc}, which declares no permission")
        guard = Depends(self._guard(rpc, permission))

        def offer(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            for prefix in ("",) if bare else PREFIXES:
                self.rpc_of_path[prefix + path] = rpc
                self.router.add_api_route(
                    prefix + path,
                    handler,
                    methods=["GET"],
                    dependencies=[guard],
                    responses=self._failures,
                    include_in_schema=options.get("include_in_schema", prefix != PREFIXES[1]),
                    operation_id=rpc.rpartition("/")[2] if prefix != PREFIXES[1] else None,
                    **{k: v for k, v in options.items() if k != "include_in_schema"},
                )
            return handler

        return offer

    def caller(self, request: Request) -> Caller:
        """The verified caller of a request that passed the guard."""
        return cast("Caller", request.state.caller)

    def _guard(self, rpc: str, permission: str) -> Callable[[Request], Awaitable[None]]:
        async def guard(request: Request) -> None:
            request.state.rpc = rpc
            request.state.caller = await self._authorise(
                rpc=rpc,
                permission=permission,
                authorization=request.headers.get("authorization", ""),
            )

        return guard


_CALLER: ContextVar[Any] = ContextVar("lattice_grpc_caller")


def grpc_caller() -> Any:
    """The verified caller of the rpc that runs in this task."""
    return _CALLER.get()


class GuardInterceptor(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Authorises each rpc, and turns errors of the tree into a status. Default is deny."""

    def __init__(
        self,
        permissions: Mapping[str, str],
        authorise: Authorise[Any],
        on_defect: Callable[[str, BaseException], None],
    ) -> None:
        self._permissions = permissions
        self._authorise = authorise
        self._on_defect = on_defect

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        rpc = handler_call_details.method.lstrip("/")
        if handler.unary_unary is None:
            raise UndeclaredPermission(f"{rpc} is a stream, and this guard knows none")
        authorization = _authorization(handler_call_details)
        behaviour = cast("Behaviour", handler.unary_unary)

        async def guarded(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
            try:
                _CALLER.set(await self._admit(rpc, authorization))
                return await behaviour(request, context)
            except LatticeError as error:
                await context.abort(*grpc_status(error))
            except Exception as defect:  # noqa: BLE001 - the last door: a defect must not speak
                self._on_defect(rpc, defect)
                await context.abort(*grpc_status(InternalError("Lattice failed here.")))

        return grpc.unary_unary_rpc_method_handler(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _admit(self, rpc: str, authorization: str) -> Any:
        permission = self._permissions.get(rpc)
        if permission is None:
            raise PermissionRefused(f"{rpc} declares no permission.")
        return await self._authorise(rpc=rpc, permission=permission, authorization=authorization)


def _authorization(details: grpc.HandlerCallDetails) -> str:
    for name, value in details.invocation_metadata or ():
        if name == "authorization":
            return value if isinstance(value, str) else ""
    return ""
