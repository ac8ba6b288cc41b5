"""Ports of this machine."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import SystemRandom

HOST = "127.0.0.1"
# Below those that clients get: one that calls a dead server's port from that very port would be
# connected to itself, and hold it.
PORTS = range(20_000, 30_000)


def free_port() -> int:
    """A port of `PORTS` that nobody listens on just now."""
    for port in SystemRandom().sample(PORTS, 50):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return port
    raise RuntimeError(f"no port of {PORTS} is free")
