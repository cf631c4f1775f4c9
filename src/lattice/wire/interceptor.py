"""What both gRPC listeners share: every call is admitted first, and no defect is disclosed.

A subclass decides who is admitted. This class turns errors of the tree into a status. On request it
admits the caller again during a stream. No message is read before the caller is admitted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from lattice.base.errors import InternalError, LatticeError, Unavailable, UsageError
from lattice.wire.status import grpc_status

# Generic for the type checker only, hence the quotes.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Context: TypeAlias = "aio.ServicerContext[Any, Any]"
NextChange: TypeAlias = Callable[[], asyncio.Future[None]]
"""A future that is done when an admitted caller may have to leave.

It fails with an error of the tree if everybody has to.
"""
Finished: TypeAlias = Callable[[str, str, float], None]
"""Called after each rpc with its name, the name of its status code, and how long it took."""
RECHECK_EVERY_S = 60.0
"""How often the caller of an open stream is admitted again, over REST and gRPC alike."""


def not_timed(rpc: str, code: str, seconds: float) -> None:
    """For a listener whose calls nobody measures."""


def never_changes() -> asyncio.Future[None]:
    """For callers that are admitted once and for all."""
    return asyncio.get_running_loop().create_future()


_EOF: Any = aio.EOF  # type: ignore[attr-defined]


class GuardingInterceptor(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Runs before every rpc of a listener."""

    def __init__(
        self,
        on_defect: Callable[[str, BaseException], None],
        recheck_every_s: float | None = None,
        next_change: NextChange = never_changes,
        finished: Finished = not_timed,
    ) -> None:
        self._finished = finished
        self._on_defect = on_defect
        self._recheck_every_s = recheck_every_s
        self._next_change = next_change

    async def admit(self, rpc: str, context: Context) -> None:
        """Return if the call may be made, else raise an error of the tree."""
        raise NotImplementedError

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        rpc = handler_call_details.method.lstrip("/")
        shape, behaviour = _shape(handler)

        async def guarded(requests: Any, context: Context) -> Any:
            async def admit() -> None:
                await self.admit(rpc, context)

            begun_s, is_cancelled = time.monotonic(), False
            try:
                await admit()
                request = requests if handler.request_streaming else await _only(context)
                if handler.response_streaming:
                    return await self._serve(_streamed(behaviour, request, context), admit)
                return await behaviour(request, context)
            except LatticeError as error:
                await context.abort(*grpc_status(error))
            except aio.AbortError:
                raise
            except asyncio.CancelledError:
                is_cancelled = True
                raise
            except Exception as defect:  # noqa: BLE001 - a defect is not disclosed
                self._on_defect(rpc, defect)
                await context.abort(*grpc_status(InternalError("Lattice failed here.")))
            finally:
                code = "CANCELLED" if is_cancelled else _code(context)
                self._finished(rpc, code, time.monotonic() - begun_s)

        return shape(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _serve(
        self, serving: Coroutine[Any, Any, None], admit: Callable[[], Awaitable[None]]
    ) -> None:
        if self._recheck_every_s is None:
            return await serving
        stream = asyncio.ensure_future(serving)
        change = self._next_change()
        try:
            while True:
                await asyncio.wait(
                    (stream, change),
                    timeout=self._recheck_every_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if stream.done():
                    return stream.result()
                if change.done():
                    change.result()
                    change = self._next_change()
                # While the caller can't be checked, what is open stays open.
                with suppress(Unavailable):
                    await admit()
        finally:
            change.cancel()
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)


def _code(context: Context) -> str:
    """The status of a call that ends now; none is OK."""
    code: Any = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.OK.name


_SHAPES = {
    "unary_unary": grpc.stream_unary_rpc_method_handler,
    "unary_stream": grpc.stream_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}
"""For grpc each rpc takes a stream; otherwise it would read the message before the caller is
admitted.
"""


def _shape(handler: Any) -> tuple[Callable[..., Any], Callable[[Any, Any], Any]]:
    for kind, shape in _SHAPES.items():
        behaviour = getattr(handler, kind)
        if behaviour is not None:
            return shape, behaviour
    raise TypeError("an rpc without a handler")


async def _only(context: Context) -> Any:
    """The one message of a unary call, read after its caller is admitted."""
    try:
        request: Any = await context.read()
    except DecodeError:
        raise UsageError("The message can't be read.", hint="Is the client too new?") from None
    if request is _EOF:
        raise UsageError("The call carries no message.")
    return request


async def _streamed(behaviour: Callable[[Any, Any], Any], request: Any, context: Any) -> None:
    answer = behaviour(request, context)
    if isinstance(answer, AsyncIterator):
        async for message in answer:
            await context.write(message)
    else:
        await answer
