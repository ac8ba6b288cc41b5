"""Listening sockets, bound before their addresses are printed.

Invariants:
- A port belongs to us from the moment that `listen` returns: whoever is named at it, we are.
- Where a port is taken the error names it and the option that chooses another.
"""

from __future__ import annotations

import socket
from typing import Final

from spikeguard_cli.command import CommandFailed

BACKLOG: Final = 2048


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket that listens; raise `CommandFailed` where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, or asyncio leaves Nagle's algorithm on: 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CommandFailed(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another with {option}"
        ) from error
    except OverflowError as error:
        listener.close()
        raise CommandFailed(f"{option} takes 0 to 65535, and got {port}") from error
    return listener
