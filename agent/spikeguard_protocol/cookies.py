"""The cookies of a request, without those that cost more to read than their length tells.

Python's own parser undoes backslashes in a quoted value in a time that grows with the square of its
length (CVE-2024-7592, before 3.11.10 and 3.12.6): 60 kB of them took 7 s, in which a server that
reads cookies in its event loop answers nobody.

Invariants: pure. What is set here has no backslash, so nothing of ours is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

_QUOTING = b"\\"


def plain_cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """`headers`, of an ASGI request, without cookies that hold a backslash."""
    return [(name, _plain(value) if name == b"cookie" else value) for name, value in headers]


def _plain(value: bytes) -> bytes:
    if _QUOTING not in value:
        return value
    return b";".join(part for part in value.split(b";") if _QUOTING not in part)
