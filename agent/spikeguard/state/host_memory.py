"""How much host memory this process may still take: the least of its cgroups and of the machine.

A container's limit is that of its cgroup or of one above it, of version 2 or 1; the machine's own
figures count where no cgroup says less.
Invariants: only files are read. What cannot be read limits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

UNLIMITED = 1 << 60  # version 1 says a number near 2**63 where there is no limit


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
        version = 2 if not controllers else 1
        if version == 2 or "memory" in controllers.split(","):
            for folder in _folders(root, version, path):
                found = _limited(folder, version)
                if found is not None:
                    yield found


def _folders(root: Path, version: int, path: str) -> Iterator[Path]:
    """The folder of the cgroup `path` and those above it, as far as they are mounted here."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, kind = line.partition(" - ")
        kinds = kind.split()
        if not kinds or kinds[0] != ("cgroup2" if version == 2 else "cgroup"):
            continue
        if version == 1 and "memory" not in kinds[-1].split(","):
            continue
        top, mount = fields.split()[3:5]
        base = root / mount.lstrip("/")
        inside = path[len(top.rstrip("/")) :] if path.startswith(top.rstrip("/")) else ""
        folder = base / inside.strip("/")
        if ".." in inside or not folder.is_dir():  # outside of what this namespace shows
            folder = base
        yield folder
        while folder != base:
            folder = folder.parent
            yield folder


def _limited(folder: Path, version: int) -> HostMemory | None:
    """What the cgroup of `folder` allows; None where it sets no limit."""
    names = (
        ("memory.max", "memory.current", "inactive_file")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    with suppress(OSError, ValueError):
        limit = int(_text(folder / names[0]))  # "max" is no number
        if limit < UNLIMITED:
            caches = _numbers(folder / "memory.stat").get(names[2], 0)
            used = int(_text(folder / names[1])) - caches
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
