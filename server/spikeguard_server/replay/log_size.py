"""How large a file of a log may be: a whole log is held in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from spikeguard_cli.command import CommandFailed

LARGEST: Final = 2 * 2**30  # bytes of a file; reading takes several times as much memory


def check_size(path: Path, before: int = 0) -> int:
    """Bytes of the file and of those read `before` it; raises `CommandFailed` where they are too
    many."""
    return _bounded(path, before + path.stat().st_size)


def read_bytes(path: Path) -> bytes:
    """All that the file holds, or that a pipe or device gives; raises `CommandFailed` as soon as it
    is too much."""
    check_size(path)
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    _bounded(path, len(data))
    return data


def _bounded(path: Path, size: int) -> int:
    if size > LARGEST:
        raise CommandFailed(
            f"{path}: {size:,} bytes, {LARGEST:,} at most: cut the log in parts, or thin it out"
        )
    return size
