"""What the protos declare: every rpc of Lattice with the permission it needs.

Only the protos declare permissions. A REST route names its rpc and inherits. A method without one
is an error here, before anything listens.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from google.protobuf.descriptor import FileDescriptor

from lattice.wire import v1
from lattice.wire.v1 import options_pb2


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
