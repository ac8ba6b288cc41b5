"""The outboxes of attempts that are dead: found, sent by whoever lives, and bounded together.

Law: one limit for all that the attempts of a run left in a folder. However often a job is killed
without a server, no more than that lies there: what goes first is the same as within one outbox,
the oldest attempt's before the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spikeguard.uplink.folder import attempt_folders
from spikeguard.uplink.letter import Mark
from spikeguard.uplink.outbox import Outbox
from spikeguard_protocol import RunId

UNBOUNDED = 2**62  # bytes: only an attempt that lives thins anything out
LOOK_S = 30.0  # between two looks at what nobody holds
HOLD_S = 1.0  # before it is claimed again


def leftovers(parent: Path, run: RunId) -> list[Outbox]:
    """The outboxes under `parent` whose attempts are dead and left something, oldest first.

    Never raises: what cannot be read stays where it is.
    """
    found = []
    for folder in attempt_folders(parent):
        try:
            outbox = Outbox(folder, run, folder.name, UNBOUNDED)
        except (OSError, ValueError):
            continue  # its attempt is alive and holds the lock, or the disk will not have it
        if not outbox.ended and outbox.sequence > 0:
            outbox.end_killed("killed; its last messages were sent by the next attempt")
        if outbox.empty:
            outbox.close()
        else:
            found.append(outbox)
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

    def __init__(self, parent: Path, run: RunId, own: str) -> None:
        self._parent, self._run, self._own = parent, run, own
        self._boxes: Sequence[Outbox] = ()
        self._marks: dict[str, dict[int, Mark]] = {}  # by attempt: each comes back as a whole file
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
        self._boxes = leftovers(self._parent, self._run)
        for box in self._boxes:
            box.recall(self._marks.get(box.attempt, {}))
        try:
            yield self._boxes
        finally:
            self._marks = {box.attempt: box.marks for box in self._boxes}
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
        for path in folder.glob("*.jsonl"):
            with suppress(OSError):
                found += path.stat().st_size
    return found
