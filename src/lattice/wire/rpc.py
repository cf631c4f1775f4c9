"""gRPC handlers for people's operations, made from their declarations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from lattice.base.operation import (
    AnyBinding,
    Binding,
    StreamBinding,
    check_request,
    request_fields,
)
from lattice.wire.convert import message_of, value_of
from lattice.wire.guard import grpc_caller


class OperationHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Finds the handler of an operation by its gRPC path."""

    def __init__(self, bindings: Iterable[AnyBinding]) -> None:
        self._handlers = {
            f"/{each.operation.rpc}": _handler(each)
            for each in bindings
            if isinstance(each, StreamBinding) or not each.operation.rest_id
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler, or None if no operation has this path."""
        return self._handlers.get(handler_call_details.method)


def _handler(binding: AnyBinding) -> grpc.RpcMethodHandler[Any, Any]:
    request_kind, answer_kind = _messages(binding.operation.rpc)
    make = grpc.unary_unary_rpc_method_handler
    if isinstance(binding, StreamBinding):
        make = grpc.unary_stream_rpc_method_handler
        answer = _streamed(binding)
    else:
        answer = _answered(binding, answer_kind)
    return make(
        answer,
        request_deserializer=request_kind.FromString,
        response_serializer=answer_kind.SerializeToString,
    )


def _answered(binding: Binding[Any, Any], kind: type[Message]) -> Any:
    request_of = _reader(binding)
    written = binding.message or partial(message_of, kind=kind)

    async def answer(message: Message, _context: Any) -> Message:
        answer: Message = written(await binding.handler(grpc_caller(), request_of(message)))
        return answer

    return answer


def _streamed(binding: StreamBinding[Any, Any]) -> Any:
    request_of = _reader(binding)

    async def answer(message: Message, _context: Any) -> AsyncIterator[Message]:
        records = await binding.handler(grpc_caller(), request_of(message))
        async with aclosing(records):
            async for record, cursor in records:
                yield binding.message(record, cursor)

    return answer


def _reader(binding: AnyBinding) -> Callable[[Message], Any]:
    """A reader of requests. A field that REST has in a header may be missing in the message."""
    kind = binding.operation.request
    known = _messages(binding.operation.rpc)[0].DESCRIPTOR.fields_by_name
    headers = (each.name for each in request_fields(kind) if each.rule.header)
    missing = frozenset(headers) - set(known)

    def read(message: Message) -> Any:
        request = value_of(message, kind, missing=missing)
        check_request(request)
        return request

    return read


def _messages(rpc: str) -> tuple[type[Message], type[Message]]:
    pool = descriptor_pool.Default()
    service, _, name = rpc.partition("/")
    method = pool.FindServiceByName(service).methods_by_name[name]
    return (
        message_factory.GetMessageClass(method.input_type),
        message_factory.GetMessageClass(method.output_type),
    )
