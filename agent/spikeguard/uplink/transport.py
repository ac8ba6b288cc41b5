"""One HTTP request with a message in it, and what its answer means for the outbox. Standard library
only: one connection kept open, every wait bounded.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPConnection, HTTPSConnection, responses
from typing import Any
from urllib.parse import urlsplit

from spikeguard.uplink.messages import EncodedMessage
from spikeguard_protocol import Ack, Message, ProtocolError, UnreadableOrder, encode, read_ack
from spikeguard_protocol.bearer import bearer
from spikeguard_protocol.bounded_answer import answer_within
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.identity import MAX_STEP, RUN_HEADER

ROLE = (
    "Give the job a token of role agent in SPIKEGUARD_TOKEN, or the file in SPIKEGUARD_TOKEN_FILE"
)
ANSWER_TIMEOUTS = 2  # from the request's end to the answer's: so many of `timeout_s`


class Advice(StrEnum):
    """What to do about a message after an answer."""

    STORED = "stored"
    RESUME_FROM = "resume_from"  # a gap: the server waits for an older number
    GIVE_UP = "give_up"  # final for this message
    ASK_LATER = "ask_later"  # a person has to mend something
    BACK_OFF = "back_off"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer, or none."""

    advice: Advice
    reason: str = ""
    ack: Ack | None = None
    unreadable: tuple[UnreadableOrder, ...] = ()  # orders of that acknowledgement
    expected: int | None = None
    retry_after_s: float | None = None


class Transport:
    """A connection to `server`, opened when needed."""

    def __init__(self, server: str, token: str | None, timeout_s: float) -> None:
        parts = urlsplit(server)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname or "", parts.port
        root = parts.path.rstrip("/")
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{root}"
        self._path = f"{root}/v1/messages"
        self._headers = {"Content-Type": "application/json", "User-Agent": "spikeguard-agent"}
        if token:
            self._headers["Authorization"] = bearer(token)
        self._timeout_s = timeout_s
        self._connection: HTTPConnection | None = None

    def send(self, message: EncodedMessage | Message) -> Verdict:
        """Post `message`; never raises for what the network or the server does."""
        try:
            body = encode(message) if isinstance(message, Message) else message.body
            return self._exchange(body, f"{message.project}/{message.run}")
        except Exception as error:  # also a length that no memory holds
            self.close()
            return Verdict(Advice.BACK_OFF, printable(f"{type(error).__name__}: {error}"[:500]))

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """End the wait that another thread is in."""
        sock = getattr(self._connection, "sock", None)
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _exchange(self, body: bytes, run: str) -> Verdict:
        if self._connection is None:
            self._connection = self._kind(self._host, self._port, timeout=self._timeout_s)
            self._connection.response_class = answer_within(ANSWER_TIMEOUTS * self._timeout_s)
        elif self._connection.sock is not None:  # the answer before has used some of it up
            self._connection.sock.settimeout(self._timeout_s)
        self._connection.request("POST", self._path, body, {**self._headers, RUN_HEADER: run})
        response = self._connection.getresponse()
        answer = response.read()
        if response.will_close:
            self.close()
        return judge(response.status, response.headers.get("Retry-After"), answer)


def judge(status: int, retry_after: str | None, answer: bytes) -> Verdict:
    """What an answer means; `docs/protocol.md` holds the table."""
    if status == 200:
        return _stored(answer)
    phrase = responses.get(status, "no reason given")  # for a proxy's page
    reason = f"{status}: {_message(answer) or phrase}"
    if status == 401:  # the server's remedy is a person's
        reason = f"401: {_message(answer, 'message') or phrase} · {ROLE}"
    expected = _error(answer).get("expected")
    if status == 409 and type(expected) is int and 1 <= expected <= MAX_STEP:
        return Verdict(Advice.RESUME_FROM, reason, expected=expected)
    if status in (413, 422):
        return Verdict(Advice.GIVE_UP, reason)
    if status in (400, 401, 403, 404):
        return Verdict(Advice.ASK_LATER, reason)
    return Verdict(Advice.BACK_OFF, reason, retry_after_s=_seconds(retry_after))


def _stored(answer: bytes) -> Verdict:
    try:
        ack, unreadable = read_ack(answer)
        return Verdict(Advice.STORED, ack=ack, unreadable=unreadable)
    except ProtocolError as error:
        return Verdict(Advice.BACK_OFF, f"200 with an answer that is no acknowledgement: {error}")


def _error(answer: bytes) -> dict[str, Any]:
    """The error object, with the keys beside it, of whatever came."""
    try:
        plain = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(plain, dict):
        return {}
    inner = plain.get("error")
    return {**plain, **(inner if isinstance(inner, dict) else {})}


def _message(answer: bytes, *keys: str) -> str:
    error = _error(answer)
    told = keys or ("field", "message", "remedy")
    parts = [str(error[key]) for key in told if error.get(key)]
    return printable(" · ".join(parts)[:500])


def _seconds(text: str | None) -> float | None:
    try:
        return min(300.0, max(0.0, float(text))) if text else None
    except ValueError:
        return None
