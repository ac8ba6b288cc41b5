"""The outboxes of attempts that are dead: found, sent by whoever lives, and bounded together.

Invariants
- One limit for all that the attempts of a run left in a folder. However often a job is killed
  without a server, no more than that lies there: what goes first is the same as within one outbox,
  the oldest attempt's before the next.
- What is none of ours stays where it is.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spikeguard.faults import log
from spikeguard.uplink.log import LOCK
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.quota import Quota
from spikeguard_protocol import RunId
from spikeguard_protocol.identity import ATTEMPT_PATTERN

UNBOUNDED = 2**62  # bytes: only an attempt that lives thins anything out
LOOK_S = 30.0  # between two looks at what nobody holds
HOLD_S = 1.0  # before it is claimed again
KILLED = "killed; its last messages were sent by the next attempt"


def attempt_folders(parent: Path) -> list[Path]:
    """Oldest first; two attempts may tidy the same parent, so any of them may vanish meanwhile."""
    dated = []
    with suppress(OSError):
        for path in parent.iterdir():
            if ATTEMPT_PATTERN.fullmatch(path.name) and not path.is_symlink():
                with suppress(OSError):
                    dated.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(dated)]


def live_attempts(parent: Path) -> Iterator[str]:
    """Attempts whose folder a process of this machine holds."""
    for lock in sorted(parent.glob(f"*/{LOCK}")):
        with suppress(OSError):
            handle = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield lock.parent.name
            finally:
                os.close(handle)


def orphans(parent: Path, run: RunId, tell: Callable[[str], object] = log.warning) -> list[Outbox]:
    """The outboxes under `parent` whose attempts are dead and left something, oldest first.

    Never raises: what cannot be read stays where it is. `tell`: called with what was damaged.
    """
    found, foreign = [], []
    for folder in attempt_folders(parent):
        try:
            outbox = Outbox(folder, run, folder.name, Quota(UNBOUNDED, tell=tell))
            if not outbox.ended and outbox.sequence > 0:
                outbox.end_killed(KILLED)
        except (OSError, ValueError):
            continue  # its attempt is alive and holds the lock, or the disk will not have it
        foreign += [f"{folder.name}/{name}" for name in outbox.foreign]
        if outbox.empty:
            outbox.close()
        else:
            found.append(outbox)
    if foreign:
        named = ", ".join(foreign[:8]) + (", ..." if len(foreign) > 8 else "")
        log.warning("files in %s that this release does not know are left alone: %s", parent, named)
    return found


class Held:
    """Those that this attempt sends, and so holds until they are empty."""

    def __init__(self, boxes: Sequence[Outbox]) -> None:
        self._boxes = boxes

    def size(self) -> int:
        """Bytes on disk."""
        return _on_disk(self._boxes)

    @contextmanager
    def held(self) -> Iterator[Sequence[Outbox]]:
        """All of them, as ever."""
        yield self._boxes

    def close(self) -> None:
        """Leave the rest to the next attempt."""
        for box in self._boxes:
            box.close()


class Unheld:
    """Those under `parent` of a run that sends nothing: free for `spikeguard sync` at any time."""

    def __init__(
        self, parent: Path, run: RunId, own: str, tell: Callable[[str], object] = log.warning
    ) -> None:
        self._parent, self._run, self._own, self._tell = parent, run, own, tell
        self._boxes: Sequence[Outbox] = ()
        self._size, self._look_at, self._hold_at = 0, -math.inf, -math.inf  # monotonic seconds

    def size(self) -> int:
        """Bytes on disk, as of at most `LOOK_S` ago."""
        if self._boxes:
            return _on_disk(self._boxes)
        now = time.monotonic()
        if now >= self._look_at:
            self._size, self._look_at = self._added_up(), now + LOOK_S
        return self._size

    @contextmanager
    def held(self) -> Iterator[Sequence[Outbox]]:
        """Those whose attempts are dead, for this moment; none so soon after the last."""
        if time.monotonic() < self._hold_at:
            yield ()
            return
        self._boxes = orphans(self._parent, self._run, self._tell)
        try:
            yield self._boxes
        finally:
            for box in self._boxes:
                box.close()
            self._boxes, self._look_at = (), -math.inf
            self._hold_at = time.monotonic() + HOLD_S

    def close(self) -> None:
        """Nothing is held."""

    def _added_up(self) -> int:
        folders = attempt_folders(self._parent)
        return sum(_size_within(folder) for folder in folders if folder.name != self._own)


def _on_disk(boxes: Sequence[Outbox]) -> int:
    return sum(box.sizes[0] for box in boxes)


def _size_within(folder: Path) -> int:
    found = 0
    with suppress(OSError):  # gone meanwhile
        for path in folder.glob("*.log"):
            with suppress(OSError):
                found += path.stat().st_size
    return found
