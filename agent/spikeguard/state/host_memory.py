"""How much host memory this process may still take: the least of its cgroups and of the machine.

A container's limit is that of its cgroup or of one above it, of version 2 or 1; the machine's own
figures count where no cgroup says less.
Only files are read. What cannot be read limits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

UNLIMITED = 1 << 60  # version 1 says a number near 2**63 where there is no limit
# Files of a limit and of what is used, and what of that are caches of files, by version of cgroups.
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class HostMemory(NamedTuple):
    """Bytes, and whose they are: processes with the same `owner` share them."""

    limit: int
    available: int  # that nobody uses, or that can be reclaimed from file caches
    owner: str


def host_memory(root: Path = Path("/")) -> HostMemory:
    """What this process and those beside it may use; `root`: where proc and sys are mounted."""
    machine = _machine(root)
    groups = list(_groups(root))
    limited = [each for each in groups if each.limit < machine.limit]
    owner = min(reversed(limited), key=lambda each: each.limit).owner if limited else ""
    return HostMemory(
        min(each.limit for each in (machine, *groups)),
        max(0, min(each.available for each in (machine, *groups))),
        f"{machine.owner}:{owner}" if owner else machine.owner,
    )


def _machine(root: Path) -> HostMemory:
    told = _numbers(root / "proc/meminfo")
    boot = _text(root / "proc/sys/kernel/random/boot_id")
    total = 1024 * told.get("MemTotal:", UNLIMITED >> 10)
    return HostMemory(total, 1024 * told.get("MemAvailable:", total >> 10), boot)


def _groups(root: Path) -> Iterator[HostMemory]:
    """Those that this process is in and that have a limit, from the innermost one out."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top, names = root / "sys/fs/cgroup", VERSION_2
        if controllers:
            top, names = top / "memory", VERSION_1
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = top / path.strip("/")
        if ".." in path or not folder.is_dir():  # outside of what this container shows
            folder = top
        for each in (folder, *folder.parents):
            if each.is_relative_to(top) and (found := _limited(each, *names)) is not None:
                yield found


def _limited(folder: Path, limit_in: str, used_in: str, caches_in: str) -> HostMemory | None:
    """What the cgroup of `folder` allows; None where it sets no limit."""
    with suppress(OSError, ValueError):
        limit = int(_text(folder / limit_in))  # "max" is no number
        if limit < UNLIMITED:
            caches = _numbers(folder / "memory.stat").get(caches_in, 0)
            used = int(_text(folder / used_in)) - caches
            return HostMemory(limit, limit - used, str(folder.stat().st_ino))
    return None


def _numbers(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    lines = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
