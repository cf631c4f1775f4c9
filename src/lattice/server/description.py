"""The OpenAPI description of the REST interface: built once, at the first request for it."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from lattice.base.errors import STATUS
from lattice.wire.status import ErrorBody

_EVENTS = "text/event-stream"
_REF = "#/components/schemas/{model}"


class Description:
    """The description as JSON text. It takes a quarter of a second, so a thread builds it."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._building = asyncio.Lock()
        self._text: str | None = None

    async def text(self) -> str:
        """The same text at every call."""
        async with self._building:
            if self._text is None:
                self._text = await asyncio.to_thread(describe, self._app)
        return self._text


def describe(app: FastAPI) -> str:
    """Describe the routes, with the failures that every one of them has in common.

    FastAPI's 422 is taken out: invalid input is 400 here.
    """
    description = get_openapi(title=app.title, version=app.version, routes=app.routes)
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
    # A stream of events names one content type for all its answers.
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
