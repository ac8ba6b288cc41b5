"""One HTTP request to a channel: only to a checked address, within one timeout.

Law: no redirect is followed, no proxy is asked, no more than `MAX_ANSWER` bytes are read. What is
sent in the clear goes only to networks that the operator named. No error repeats what was sent.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from spikeguard_protocol.bounded_answer import answer_within
from spikeguard_server.notify.addresses import Network, ResolvedHost, TargetRefused, resolve

CONNECT_S: Final = 5.0
ANSWER_S: Final = 15.0  # from the request's end to the answer's, its head included
MAX_ANSWER: Final = 64 * 1024
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class DeliveryFailed(Exception):
    """A message did not arrive. `again` says whether another try may help."""

    def __init__(self, reason: str, *, again: bool, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.after_s = after_s  # what the other side asked for


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class _Plain(http.client.HTTPConnection):
    """Speaks to `host`, connected to the place that was judged."""

    def __init__(self, host: str, place: ResolvedHost) -> None:
        super().__init__(host, place.port, timeout=CONNECT_S)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.create_connection((self._place.address, self._place.port), CONNECT_S)
        self.sock.settimeout(ANSWER_S)


class _Sealed(_Plain):
    """The same with TLS; the certificate is that of the name, not of the address."""

    def connect(self) -> None:
        super().connect()
        self.sock = _tls().wrap_socket(self.sock, server_hostname=self.host)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def send(
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    networks: Sequence[Network],
) -> Reply:
    """Send `body`; raise `DeliveryFailed` unless the answer is 2xx."""
    try:
        reply, after_s = _exchange(method, url, body, headers, networks)
    except TargetRefused as error:
        raise DeliveryFailed(str(error), again=False) from error
    except ssl.SSLCertVerificationError as error:
        raise DeliveryFailed(
            f"its certificate is not good: {error.verify_message}", again=False
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DeliveryFailed(f"no answer ({_why(error)})", again=True) from error
    if not 200 <= reply.status < 300:
        raise DeliveryFailed(
            f"answered {reply.status}", again=reply.status in _LATER, after_s=after_s
        )
    return reply


def post_json(
    url: str,
    content: Any,
    networks: Sequence[Network],
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> Reply:
    """Send `content` as JSON; raise `DeliveryFailed` unless the answer is 2xx."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    given = {"Content-Type": "application/json", **(headers or {})}
    return send(method, url, body, given, networks)


def _exchange(
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    networks: Sequence[Network],
) -> tuple[Reply, float | None]:
    parts = urlsplit(url)
    sealed = parts.scheme == "https"
    host = parts.hostname or ""
    place = resolve(host, parts.port or (443 if sealed else 80), networks)
    if not sealed and not place.allowed:
        raise TargetRefused("http without TLS goes only to networks in SPIKEGUARD_NOTIFY_NETWORKS")
    connection = (_Sealed if sealed else _Plain)(host, place)
    connection.response_class = answer_within(ANSWER_S)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        given = {"User-Agent": "spikeguard", "Connection": "close", **headers}
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        return Reply(answer.status, answer.read(MAX_ANSWER)), _after(answer)
    finally:
        connection.close()


def _after(answer: http.client.HTTPResponse) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return min(float(text), 3600.0) if text.isdecimal() else None


def _why(error: Exception) -> str:
    """The kind of failure; texts of errors may hold what was sent."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, socket.gaierror):
        return "the name does not resolve"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return type(error).__name__
