"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from fastapi import Request

from lattice.access.actor import Actor
from lattice.features.locks.model import LockList, LockOrder, UnlockOrder
from lattice.features.locks.service.locking import LockService
from lattice.wire.guard import GuardedRoutes


def offer(routes: GuardedRoutes[Actor], service: LockService) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.LockService/"

    @routes.get("/locks", rpc=rpc + "ListLocks", response_model=LockList)
    async def list_locks(request: Request) -> LockList:
        return await service.locks(routes.caller(request))

    @routes.post("/locks", rpc=rpc + "CreateLock", body=LockOrder, response_model=LockList)
    async def create_lock(request: Request) -> LockList:
        order = await routes.body(request, LockOrder)
        return await service.lock(routes.caller(request), order)

    @routes.post("/locks/unlock", rpc=rpc + "DeleteLock", body=UnlockOrder, response_model=LockList)
    async def delete_lock(request: Request) -> LockList:
        order = await routes.body(request, UnlockOrder)
        return await service.unlock(routes.caller(request), order)
