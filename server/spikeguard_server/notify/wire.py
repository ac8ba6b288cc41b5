"""One HTTP request to a channel: only to checked addresses, within one deadline.

No redirect is followed, no proxy is asked, at most `MAX_ANSWER` bytes are read. What is sent
without TLS goes only to networks that the operator named. No error repeats what was sent.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import httpx

from spikeguard_server.notify.addresses import Network, TargetRefused, resolve

CONNECT_S: Final = 5.0  # for each address
ANSWER_S: Final = 30.0  # for everything after the name is resolved, to the end of the answer
MAX_ANSWER: Final = 64 * 1024
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class DeliveryFailed(Exception):
    """A message did not arrive. `again` says whether another try may help."""

    def __init__(self, reason: str, *, again: bool, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.after_s = after_s  # what the other side asked for


class _CheckedTransport(httpx.AsyncHTTPTransport):
    """Connects to the addresses that were judged, one after the other, in the name of the host:
    its certificate is that of the name."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(verify=_tls())
        self._addresses = addresses

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it to the first address that takes the connection."""
        host = request.url.host
        failure: httpx.TransportError = httpx.ConnectError("no address")
        request.extensions = {**request.extensions, "sni_hostname": host}
        for address in self._addresses:
            request.url = request.url.copy_with(host=address)
            try:
                return await super().handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def send(url: str, body: bytes, headers: Mapping[str, str], networks: Sequence[Network]) -> None:
    """Send `body`; raise `DeliveryFailed` unless the answer is 2xx.

    Where this process may not connect to, and whose certificates it trusts, are settings of this
    process: another replica may well deliver what this one cannot.
    """
    try:
        status, after_s = _exchange(url, body, headers, networks)
    except TargetRefused as error:
        raise DeliveryFailed(str(error), again=True) from error
    except (OSError, TimeoutError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise DeliveryFailed(f"no answer ({_why(error)})", again=True) from error
    if not 200 <= status < 300:
        raise DeliveryFailed(f"answered {status}", again=status in _LATER, after_s=after_s)


def post_json(url: str, content: Any, networks: Sequence[Network]) -> None:
    """Send `content` as JSON; raise `DeliveryFailed` unless the answer is 2xx."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    send(url, body, {"Content-Type": "application/json"}, networks)


def _exchange(
    url: str, body: bytes, headers: Mapping[str, str], networks: Sequence[Network]
) -> tuple[int, float | None]:
    place = httpx.URL(url)
    sealed = place.scheme == "https"
    addresses, allowed = resolve(place.host, place.port or (443 if sealed else 80), networks)
    if not sealed and not allowed:
        raise TargetRefused("http without TLS goes only to networks in SPIKEGUARD_NOTIFY_NETWORKS")
    # asyncio for its deadline: a timeout of sockets begins anew with every byte that drips in.
    return asyncio.run(asyncio.wait_for(_post(place, body, headers, addresses), ANSWER_S))


async def _post(
    url: httpx.URL, body: bytes, headers: Mapping[str, str], addresses: Sequence[str]
) -> tuple[int, float | None]:
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    transport = _CheckedTransport(addresses)
    async with httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False) as client:
        given = {"User-Agent": "spikeguard", "Connection": "close", **headers}
        async with client.stream("POST", url, content=body, headers=given) as answer:
            read = 0
            async for part in answer.aiter_raw():
                read += len(part)
                if read > MAX_ANSWER:
                    break
            return answer.status_code, _after(answer)


def _after(answer: httpx.Response) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return min(float(text), 3600.0) if text.isdecimal() else None


def _why(error: BaseException | None) -> str:
    """The kind of failure in the system's words: other texts may hold what was sent."""
    cause = error
    while cause is not None:  # what it came from, httpx's own words first
        if isinstance(cause, TimeoutError | httpx.TimeoutException):
            return "timed out"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
