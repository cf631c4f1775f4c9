"""Dataclass to protobuf, by name: the two shapes of a thing have the same fields.

A feature's `convert.py` says which message belongs to which dataclass; this fills it. A field
that only one of the two has is an error, so they can't drift apart unseen.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)


def message_of(value: Any, kind: type[M]) -> M:
    """The dataclass as a message of this kind. `None` leaves its field unset."""
    message = kind()
    _fill(message, value)
    return message


def moment(stamp: Timestamp) -> datetime:
    """A protobuf time as an aware one."""
    return stamp.ToDatetime(tzinfo=UTC)


def _fill(message: Message, value: Any) -> None:
    known = message.DESCRIPTOR.fields_by_name
    names = {field.name for field in fields(value)}
    if names != set(known):
        odd = ", ".join(sorted(names ^ set(known)))
        raise TypeError(f"{type(value).__name__} and {message.DESCRIPTOR.name} differ in {odd}")
    for name in names:
        content = getattr(value, name)
        if content is None:
            continue
        if isinstance(content, tuple):
            _extend(getattr(message, name), content)
        elif is_dataclass(content):
            part = getattr(message, name)
            part.SetInParent()
            _fill(part, content)
        elif isinstance(content, datetime):
            getattr(message, name).FromDatetime(content)
        else:
            setattr(message, name, content.value if isinstance(content, Enum) else content)


def _extend(repeated: Any, items: tuple[Any, ...]) -> None:
    for item in items:
        if is_dataclass(item):
            _fill(repeated.add(), item)
        else:
            repeated.append(item.value if isinstance(item, Enum) else item)
