"""A detector's state in bytes: as it is stored, and kept in memory of runs that are seen less."""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import State

STATE_VERSION: Final = 24  # whoever changes a class that `State` holds counts it up
_MAGIC: Final = b"spikeguard-monitor "
_QUICKLY: Final = 1  # more of it saves 2 % of the bytes and takes half as long again
_WRITER: Final = msgspec.msgpack.Encoder(enc_hook=float)  # numbers of numpy, too
_READER: Final = msgspec.msgpack.Decoder(State)


class UnknownStateVersion(ValueError):
    """The state was written by another version of the monitor, or is not one."""


class OlderStateVersion(UnknownStateVersion):
    """The state was written by an older version of the monitor, or is damaged: the run is learned
    anew from its samples."""


def freeze(monitor: Monitor) -> bytes:
    """The bytes of what `monitor` remembers, some 10 kB."""
    head = _MAGIC + str(STATE_VERSION).encode() + b"\n"
    return head + zlib.compress(_WRITER.encode(monitor.state), _QUICKLY)


def thaw(body: bytes) -> Monitor:
    """The monitor that `freeze` wrote; raises `UnknownStateVersion` if this code did not write
    it."""
    head, _, packed = body.partition(b"\n")
    if head != _MAGIC + str(STATE_VERSION).encode():
        kind = OlderStateVersion if _is_older(head) else UnknownStateVersion
        raise kind(
            f"monitor state begins {head[:40]!r}; this server reads version {STATE_VERSION}: "
            "run the release that wrote it, or upgrade"
        )
    try:
        return Monitor.of(_READER.decode(zlib.decompress(packed)))
    except (zlib.error, msgspec.DecodeError) as error:
        raise OlderStateVersion(f"monitor state is no state of this server's: {error}") from error


def _is_older(head: bytes) -> bool:
    written = head.removeprefix(_MAGIC)
    return written != head and written.isdigit() and int(written) < STATE_VERSION
