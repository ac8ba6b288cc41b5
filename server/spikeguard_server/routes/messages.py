"""`POST /v1/messages`: what agents send."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from spikeguard_protocol import Message, ProtocolError, Samples, decode_message, encode, to_json
from spikeguard_protocol.identity import BatchRange
from spikeguard_protocol.orders import Ack
from spikeguard_server.errors import (
    Busy,
    Malformed,
    SequenceGap,
    TooLarge,
    Unready,
    VersionNotSpoken,
)
from spikeguard_server.ingest import receive
from spikeguard_server.routes.answers import Answer, refusals
from spikeguard_server.routes.door import CallerDep, ServicesDep
from spikeguard_server.routes.protocol_schema import reference
from spikeguard_server.routes.shapes import ATTEMPT

router = APIRouter(tags=["agents"])

MESSAGE_EXAMPLE = to_json(
    Message(
        project="default",
        run="gpt-124m-7",
        attempt=ATTEMPT,
        sequence=4191,
        age_s=0.02,
        records=(
            Samples(
                segment=0,
                steps=(4190, 4191),
                signals={"loss": (2.61, float("nan")), "grad_norm": (0.41, None)},
                positions=(BatchRange(4189, 4190), BatchRange(4190, 4191)),
            ),
        ),
    )
)
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A `Message` of spikeguard_protocol, version 1.",
        "content": {"application/json": {"schema": reference(Message), "example": MESSAGE_EXAMPLE}},
    }
}
_ACK: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Stored, detected on and durable.",
        "content": {
            "application/json": {
                "schema": reference(Ack),
                "example": to_json(Ack(sequence=4191)),
            }
        },
    }
}
_REFUSALS = refusals(
    Malformed("The body is not JSON", "Send a Message"),
    VersionNotSpoken("This server speaks version 1", "Upgrade", field="version", supported=[1]),
    SequenceGap(4191, 4195),
    TooLarge(4 * 2**20),
    Busy("Too many messages at once", "Wait, then send it again"),
    Unready("The database cannot be reached", "Wait, then send it again"),
)


async def _body(request: Request) -> bytes:
    return await request.body()


@router.post(
    "/v1/messages",
    summary="Take a message from an agent",
    response_class=Answer,
    responses={**_ACK, **_REFUSALS},
    openapi_extra=_BODY,
)
def take_message(
    services: ServicesDep, caller: CallerDep, body: Annotated[bytes, Depends(_body)]
) -> Response:
    """One message is one transaction. Sent twice it has its effect once and the same answer."""
    services.metrics.message_bytes.inc(len(body))
    message = _decode(body)
    caller.check_project(message.project)
    ack = receive(services.engine, message, settings=services.settings, monitors=services.monitors)
    services.metrics.samples.inc(
        sum(len(record.steps) for record in message.records if isinstance(record, Samples))
    )
    return Response(encode(ack), media_type="application/json")


def _decode(body: bytes) -> Message:
    try:
        return decode_message(body)
    except ProtocolError as error:
        if error.field == "body":  # of all fields: so it is no JSON object at all
            raise Malformed(f"The body {error.limit}", error.remedy, field="body") from error
        raise
