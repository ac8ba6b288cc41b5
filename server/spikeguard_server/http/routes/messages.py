"""`POST /v1/messages`: what agents send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from spikeguard_protocol import Message, ProtocolError, Samples, decode_message, encode, plain_json
from spikeguard_protocol.identity import RUN_HEADER
from spikeguard_protocol.orders import Ack
from spikeguard_server.errors import Busy, Malformed
from spikeguard_server.http.dependencies import Services, bearer_secret, sign_in
from spikeguard_server.http.middleware import GONE
from spikeguard_server.http.openapi import reference
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.permissions import TABLE, check_access, hash_secret
from spikeguard_server.ingest.message_pool import MessagePool, SharedQuota
from spikeguard_server.ingest.receive import Received, receive
from spikeguard_server.log_format import add_context

MAX_INFLOW: Final = 64 * 2**20  # bytes of all bodies that come in parts
MAX_RUN: Final = 200  # characters of what a sender calls its run
BODY_S: Final = 60.0  # for a whole body
KNOWN_S: Final = 30.0  # that a secret which was good is read before it is judged again
MAX_KNOWN: Final = 10_000  # secrets
MAX_ATTENTIVE: Final = 4000  # runs
JUDGES: Final = 2  # tokens that are looked up at once
REFUSED_S: Final = 0.2  # before a refusal for overload is told: a flood gets no faster by it

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A `Message` of spikeguard_protocol, version 1.",
        "content": {"application/json": {"schema": reference(Message)}},
    }
}
_ACK: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Stored, detected on and durable.",
        "content": {"application/json": {"schema": reference(Ack)}},
    }
}


class _MessageRoute(APIRoute):
    """Calls the endpoint as it is, hundreds of times a second: it judges the token itself, before
    it reads anything of the message."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return answer


router = APIRouter(tags=["agents"], route_class=_MessageRoute)


@router.post(
    "/v1/messages",
    summary="Take a message from an agent",
    response_class=JsonReply,
    responses=_ACK,
    openapi_extra=_BODY,
)
async def take_message(request: Request) -> Response:
    """One message is one transaction. Sent twice it has its effect once and the same answer."""
    intake: MessageIntake = request.app.state.messages
    host = "" if request.client is None else request.client.host
    secret = bearer_secret(request)
    sender = intake.find(secret)
    if sender is None:
        sender = await run_sync(intake.judge, secret, limiter=intake.judges)
    run = request.headers.get(RUN_HEADER, "")[:MAX_RUN]
    if run:
        add_context(run=run)
    ack = await intake.take(request, sender, run or host)
    if ack is None:  # nobody is there any more
        return Response(status_code=GONE)
    return Response(encode(ack), media_type="application/json")


class Sender(NamedTuple):
    """Whose secret a message came with."""

    hash: bytes
    project: str | None  # that it is good for; None: every project


@dataclass
class MessageIntake:
    """Takes messages: who may, in which order, and what is answered."""

    services: Services
    pool: MessagePool
    known: dict[bytes, tuple[float, Sender]] = field(default_factory=dict)  # until when, by hash
    # runs near a spike, by client
    attentive: dict[tuple[str | bytes, str], None] = field(default_factory=dict)
    judges: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(JUDGES))
    inflow: SharedQuota = field(
        default_factory=lambda: SharedQuota(MAX_INFLOW, "bytes of messages are on their way")
    )

    def find(self, secret: str | None) -> Sender | None:
        """Whose secret it is, if it was good a moment ago."""
        until, sender = self.known.get(hash_secret(secret or ""), (0.0, None))
        return sender if monotonic() < until else None

    async def take(self, request: Request, sender: Sender, run: str) -> Ack | None:
        """Take one message of `run`, as its sender calls it; its acknowledgement, None if the
        connection ended before the body did. The tokens share `MAX_INFLOW` of bodies that come in
        parts, until they are stored."""
        parts, size = list[bytes](), 0
        try:
            async with asyncio.timeout(BODY_S):
                while (message := await request.receive())["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    if not message.get("more_body"):
                        break
                    self.inflow.take(sender.hash, len(parts[-1]))
                    size += len(parts[-1])
                else:
                    return None
            return await self._queue(b"".join(parts), sender, run)
        except TimeoutError:
            raise Busy(
                f"The body did not come within {BODY_S:g} s", "Send it again", limit=BODY_S
            ) from None
        finally:
            if size:
                self.inflow.give_back(sender.hash, size)

    async def _queue(self, body: bytes, sender: Sender, run: str) -> Ack:
        """Let the message have its turn.

        The token is judged once more in the message's own transaction (`permissions.TABLE` holds
        for it as for every call). All tokens of a project are one client of the `MessagePool`.
        """
        client = sender.project or sender.hash
        store, first = partial(self._store, body, sender), (client, run) in self.attentive
        try:
            waiting = self.pool.take(client, run, store, first=first)
        except Busy:
            del body, store
            await asyncio.sleep(REFUSED_S)
            raise
        self.services.metrics.ingest_waiting.set(self.pool.length)
        ack: Ack = await asyncio.wrap_future(waiting)
        self.attentive.pop((client, run), None)
        if ack.attentive:
            self.attentive[client, run] = None
        if len(self.attentive) > MAX_ATTENTIVE:
            del self.attentive[next(iter(self.attentive))]
        return ack

    def judge(self, secret: str | None) -> Sender:
        """Judge the token before anything of the message is read."""
        if (sender := self.find(secret)) is not None:  # of many that waited the first was judged
            return sender
        caller = sign_in(self.services, secret)
        check_access(caller, TABLE["POST", "/v1/messages"])
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        sender = Sender(hash_secret(secret or ""), caller.project)
        self.known[sender.hash] = (monotonic() + KNOWN_S, sender)
        return sender

    def _store(self, body: bytes, sender: Sender) -> Ack:
        services = self.services
        try:
            message = decode_message(body, read_json)
        except ProtocolError as error:
            if error.field == "body":  # of all fields: so it is no JSON object at all
                told = f"A message {error.limit}: {error.remedy}"
                raise Malformed("The body is no message", told, field="body") from error
            raise
        received = Received(message, services.settings, services.monitors, sender.hash)
        ack = receive(services.engine, received)
        for record in message.records:
            if isinstance(record, Samples):
                services.metrics.samples.inc(len(record.steps))
        return ack


_QUICK: Final = msgspec.json.Decoder()


def read_json(body: bytes) -> Any:
    """As `plain_json`, errors included, in a fifth of its time. What the quick reader refuses is
    read again by that: some of it is fine there (a float beyond the largest, a lone surrogate), and
    what is not is refused in its words."""
    try:
        return _QUICK.decode(body)
    except (ValueError, RecursionError):
        return plain_json(body)
