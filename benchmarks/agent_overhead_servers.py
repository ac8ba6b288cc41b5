"""Servers that misbehave, each on a real socket: what the agent must not feel in the loop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ANSWERS = {
    "500": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "429": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n",
    "garbage": b"\x00\xff\x00 no protocol at all\r\n\r\n\xfe\xfe",
    "hung": None,  # accepts, never answers
}


@contextmanager
def misbehaving(kind: str) -> Iterator[str]:
    """The address of a server that answers every request as `ANSWERS` says; `absent`: nobody."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if kind == "absent":
        listener.close()
        yield address
        return
    held: list[socket.socket] = []
    thread = threading.Thread(target=_serve, args=(listener, ANSWERS[kind], held), daemon=True)
    thread.start()
    try:
        yield address
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in held:
            connection.close()


def _serve(listener: socket.socket, answer: bytes | None, held: list[socket.socket]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if answer is None:
            held.append(connection)
            continue
        try:
            connection.settimeout(0.5)
            connection.recv(65536)
            connection.sendall(answer)
        except OSError:
            pass
        finally:
            connection.close()
