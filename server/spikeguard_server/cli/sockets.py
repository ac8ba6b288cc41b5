"""Listening sockets, bound before their addresses are printed.

Invariants:
- A port belongs to us from the moment that `listen` returns: whoever is named at it, we are.
- Where a port is taken the error names it, the process that holds it if that can be read, and the
  option that chooses another.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from spikeguard_cli.command import CommandFailed

BACKLOG: Final = 2048
TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENS: Final = "0A"  # the state in those tables


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
            f"cannot listen on {host}:{port} ({error.strerror}{_holder(port)}): "
            f"choose another with {option}"
        ) from error
    except OverflowError as error:
        listener.close()
        raise CommandFailed(f"{option} takes 0 to 65535, and got {port}") from error
    return listener


def _holder(port: int) -> str:
    pid = process_listening_on(port)
    return f", held by {_name(pid)}, process {pid}" if pid is not None else ""


def process_listening_on(port: int) -> int | None:
    """The process that listens on `port`; None where this machine or our rights do not tell."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(_target(entry) in sockets for entry in (process / "fd").iterdir()):
                return int(process.name)
    return None


def _inodes(port: int) -> Iterator[str]:
    for table in TABLES:
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _target(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except OSError:
        return ""


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "a program"
