"""Rank 0 tells the server what all ranks left out, from the files that they wrote.

No rank waits for another: where the run's directory is shared the other ranks' files lie there, so
nothing of this meets in a collective; where each machine has its own only rank 0's are told.
Law: run by the thread of `left_out_log`. Told at least once: how far each file was told of is noted
only once the outbox has it, so an attempt goes on where a killed one stopped; the server keeps one
entry of a position and rank. A few at a time, since samples wait in the same line.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from spikeguard.data.line_files import whole_lines
from spikeguard.data.skipped import LeftOut, entry_of, files_in
from spikeguard_protocol import Record

NOTE = "told.json"  # file -> bytes of it that were told of
AT_ONCE_BYTES = 256 * 1024  # of all files
PAUSE_S = 1.0  # between two looks while there is something new
LONGEST_PAUSE_S = 30.0  # doubling up to it while there is not
LINGER_S = 120.0  # after the last news: other ranks and file systems of a cluster may be late


class SkipUpload:
    """How far the files of `folder` were told of."""

    def __init__(
        self,
        folder: Path,
        put: Callable[[Record], None],
        has_all: Callable[[], bool],
        lingers: bool,
    ) -> None:
        """`has_all`: whether the outbox has written down what was put. `lingers`: there are other
        ranks, whose files may grow unnoticed."""
        self._folder, self._put, self._has_all, self._lingers = folder, put, has_all, lingers
        self._told = _noted(folder / NOTE)
        self._kept = dict(self._told)  # as the note has it
        self._pause_s, self._news_at = PAUSE_S, time.monotonic()
        self._due_at = -math.inf  # monotonic; whoever wakes the thread before does not hurry this

    def tell(self, entries: list[LeftOut]) -> None:
        """Of what could not be written down."""
        for entry in entries:
            self._put(entry.record)

    def look(self) -> float | None:
        """Tell of some of what is new; seconds until it is worth a look again, None: no more."""
        now = time.monotonic()
        if now < self._due_at:
            return self._due_at - now
        if not self._has_all():
            return PAUSE_S
        self.confirm()
        if self._tell_some():
            self._pause_s, self._news_at, self._due_at = PAUSE_S, now, now + PAUSE_S
            return PAUSE_S
        return self._idle()

    def finish(self, deadline: float) -> None:
        """Tell what is left, until `deadline` by the monotonic clock."""
        while time.monotonic() < deadline:
            if not self._has_all():
                time.sleep(0.01)
            elif not self._tell_some():
                return

    def confirm(self) -> None:
        """The outbox has what was put: note that it was told of."""
        if self._told == self._kept or not self._has_all():
            return
        fresh = self._folder / f".{NOTE}"
        fresh.write_text(json.dumps(self._told))
        fresh.replace(self._folder / NOTE)
        self._kept = dict(self._told)

    def _tell_some(self) -> bool:
        """Whether there was anything."""
        left = AT_ONCE_BYTES
        for path in files_in(self._folder):
            if left <= 0:
                break
            offset = self._told.get(path.name, 0)
            if path.stat().st_size <= offset:
                continue
            lines, self._told[path.name] = whole_lines(path, offset, left)
            left -= self._told[path.name] - offset
            self.tell([entry for line in lines if (entry := entry_of(line)) is not None])
        return left < AT_ONCE_BYTES

    def _idle(self) -> float | None:
        if not self._lingers or time.monotonic() - self._news_at > LINGER_S:
            return None if self._told == self._kept else PAUSE_S
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return self._pause_s


def _noted(path: Path) -> dict[str, int]:
    """Nothing where there is no note, or none that can be read: then all is told again."""
    try:
        plain = json.loads(path.read_text())
        return {str(name): int(offset) for name, offset in plain.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
