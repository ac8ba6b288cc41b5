"""How answers are written: JSON that keeps non-finite floats, and errors in one shape.

`null` means not measured and never stands for NaN; floats go through the protocol's words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import JSONResponse

from spikeguard_protocol import to_json


class JsonReply(JSONResponse):
    """JSON with `"nan"`, `"inf"`, `"-inf"` for non-finite floats and RFC 3339 for times."""

    def render(self, content: Any) -> bytes:
        plain = content.model_dump() if isinstance(content, BaseModel) else content
        if is_dataclass(plain) and not isinstance(plain, type):
            plain = asdict(plain)
        text = json.dumps(
            to_json(plain),
            default=_time,
            allow_nan=False,
            ensure_ascii=False,
            separators=(",", ":"),
        )
        return text.encode()


class BodyRoute(APIRoute):
    """Ends the connection of an endpoint's `call`, and writes the body that it returns, in its own
    thread: FastAPI would write in that of the event loop, which messages wait for."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        @wraps(endpoint)
        def answer(**given: Any) -> Any:
            with given["call"].closing:
                body = endpoint(**given)
            status = options.get("status_code") or 200
            if body is None:
                return Response(status_code=status)
            return JsonReply(body, status_code=status)

        super().__init__(path, endpoint if iscoroutinefunction(endpoint) else answer, **options)


def _time(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} has no place in an answer")


class ErrorDetail(BaseModel):
    """What broke which limit, and what to do next."""

    model_config = {"extra": "allow"}

    code: str
    field: str | None
    message: str
    remedy: str


class ErrorBody(BaseModel):
    """The one shape of every error."""

    error: ErrorDetail
