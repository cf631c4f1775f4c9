"""The one door to every handler, over HTTP and over gRPC alike.

A feature can only offer a route through `GuardedRoutes`, which needs the name of an rpc; an rpc
is only reached through `GuardInterceptor`. Both look up the declared permission and ask the same
`Authorise` before a handler runs, so there is no way to add one that nobody guards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar, cast

from fastapi import APIRouter, Depends, Request
from starlette.routing import WebSocketRoute

from lattice.base.errors import PermissionRefused
from lattice.wire.body import LARGEST_BYTES, described_body, read_body, refuse_foreign_page
from lattice.wire.door import Context, Door, NextChange, never_changes
from lattice.wire.permissions import UndeclaredPermission
from lattice.wire.websocket import SocketDoor, SocketLine, SocketRules, Standing

Caller = TypeVar("Caller")
Caller_co = TypeVar("Caller_co", covariant=True)
Body = TypeVar("Body")

RECHECK_EVERY_S = 300.0
"""How often the token of an open stream is looked at again."""

PREFIX = "/v1"
"""Before every path that is not bare. `server.app` serves `/api/v1` by rewriting it to this."""


class Authorise(Protocol[Caller_co]):
    """Decides over one call: gives the verified caller, or raises an error of the tree."""

    async def __call__(self, *, rpc: str, permission: str, authorization: str) -> Caller_co: ...


class GuardedRoutes(Generic[Caller]):
    """A collection of REST routes, each of which names the rpc whose permission it inherits."""

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
        self.rpc_of_path: dict[str, str] = {}
        """Of those that only read."""
        self.rpc_of_route: dict[tuple[str, str], str] = {}
        """Of all, by method and path."""

    def get(
        self, path: str, *, rpc: str, bare: bool = False, **options: Any
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """Offer a GET. `bare` routes stand at the root, without a version before them."""
        return self._offer("GET", path, rpc, "" if bare else PREFIX, options)

    def change(
        self,
        method: str,
        path: str,
        *,
        rpc: str,
        body: type | None = None,
        bare: bool = False,
        **options: Any,
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """Offer a POST, PUT, PATCH or DELETE. Its handler reads a `body` with `self.body`.

        `bare` as for a GET.
        """
        if method not in {"POST", "PUT", "PATCH", "DELETE"}:
            raise ValueError(f"{method} changes nothing")
        if body is not None:
            options["openapi_extra"] = described_body(body)
        return self._offer(method, path, rpc, "" if bare else PREFIX, options)

    def post(
        self, path: str, *, rpc: str, body: type | None = None, bare: bool = False, **options: Any
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """Offer a POST."""
        return self.change("POST", path, rpc=rpc, body=body, bare=bare, **options)

    def socket(
        self,
        path: str,
        handler: Callable[[Standing[Caller], Mapping[str, str], SocketLine], Awaitable[None]],
        *,
        rpc: str,
        rules: SocketRules[Caller],
    ) -> None:
        """Offer a WebSocket. The caller is known before the upgrade, or there is none."""
        permission = self._permissions.get(rpc)
        if permission is None:
            raise UndeclaredPermission(f"WebSocket {path}: {rpc} declares no permission")
        door = SocketDoor(
            rules, self.authorised(rpc), handler, lambda defect: self._on_defect(rpc, defect)
        )
        self.router.routes.append(WebSocketRoute(PREFIX + path, door))

    def authorised(self, rpc: str) -> Callable[[str], Awaitable[Caller]]:
        """Judges a token for one rpc, for those who look at it again by themselves."""

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
        prefix: str,
        options: dict[str, Any],
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        permission = self._permissions.get(rpc)
        if permission is None:
            raise UndeclaredPermission(f"{method} {path} names {rpc}, which declares no permission")
        guard = Depends(self._guard(rpc, permission, foreign_pages=method == "GET"))

        def offer(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            self.rpc_of_route[method, prefix + path] = rpc
            if method == "GET":
                self.rpc_of_path[prefix + path] = rpc
            # Failures are the same for every route: `server.description` describes them once.
            self.router.add_api_route(
                prefix + path,
                handler,
                methods=[method],
                dependencies=[guard],
                **{"operation_id": rpc.rpartition("/")[2], **options},
            )
            return handler

        return offer

    async def body(
        self, request: Request, kind: type[Body], largest_bytes: int = LARGEST_BYTES
    ) -> Body:
        """What the request carries, read only now that the caller has passed the guard."""
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
        """Authorise a call that is still under way again; raises as at its beginning."""
        rpc = request.state.rpc
        await self._authorise(
            rpc=rpc,
            permission=self._permissions[rpc],
            authorization=request.headers.get("authorization", ""),
        )

    def defect(self, request: Request, error: BaseException) -> None:
        """A defect met after the status line was sent."""
        self._on_defect(request.state.rpc, error)

    def _guard(
        self, rpc: str, permission: str, *, foreign_pages: bool
    ) -> Callable[[Request], Awaitable[None]]:
        async def guard(request: Request) -> None:
            request.state.rpc = rpc
            if not foreign_pages:
                refuse_foreign_page(request)
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


class GuardInterceptor(Door):
    """Authorises each rpc of the people's listener, and long streams again. Default is deny."""

    def __init__(
        self,
        permissions: Mapping[str, str],
        authorise: Authorise[Any],
        on_defect: Callable[[str, BaseException], None],
        *,
        recheck_every_s: float = RECHECK_EVERY_S,
        next_change: NextChange = never_changes,
    ) -> None:
        super().__init__(on_defect, recheck_every_s, next_change)
        self._permissions = permissions
        self._authorise = authorise

    async def admit(self, rpc: str, context: Context) -> None:
        """A stream whose token no longer holds ends here; its caller goes on with a fresh one."""
        permission = self._permissions.get(rpc)
        if permission is None:
            raise PermissionRefused(f"{rpc} declares no permission.")
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
