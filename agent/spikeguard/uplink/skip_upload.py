"""Rank 0 tells the server what all ranks left out, from the files that they wrote.

No rank waits for another: where the run's directory is shared the other ranks' files lie there, so
nothing of this meets in a collective; where each machine has its own only rank 0's are told.
Law: run by the thread of `left_out_log`. Told at least once: how far each file was told of is noted
only once the outbox has it, so an attempt goes on where a killed one stopped; the server keeps one
entry of a position and rank. A few at a time, since samples wait in the same line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spikeguard.data.line_files import (
    noted_end,
    number_before,
    open_line,
    removed_in,
    sealed_line,
    whole_lines,
)
from spikeguard.data.skipped import LeftOut, files_in
from spikeguard.faults import Faults
from spikeguard_protocol import Record
from spikeguard_protocol.plain_files import read_plain

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
        faults: Faults | None = None,
    ) -> None:
        """`has_all`: whether the outbox has written down what was put. `lingers`: there are other
        ranks, whose files may grow unnoticed."""
        self._folder, self._put, self._has_all, self._lingers = folder, put, has_all, lingers
        self._faults = faults or Faults()
        self._seen: dict[str, int] = {}  # file -> bytes of it when all was read
        self._damaged: set[str] = set()  # what was told of, once each
        self._told = self._noted(folder / NOTE)
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
        fresh.write_bytes(sealed_line(self._told))
        fresh.replace(self._folder / NOTE)
        self._kept = dict(self._told)

    def _tell_some(self) -> bool:
        """Whether there was anything."""
        left = AT_ONCE_BYTES
        if not self._seen:
            for path in removed_in(self._folder):
                self._tell_damage(f"{path.name} is gone, with what it held")
        for path in files_in(self._folder):
            if left <= 0:
                break
            offset = self._told.get(path.name, 0)
            size = path.stat().st_size
            if size < offset:
                self._tell_damage(f"{path.name} is shorter than what was told of it")
                offset = 0  # the server keeps one entry of a position and rank
            if size != self._seen.get(path.name):
                to_end = size - offset <= left
                lines, self._told[path.name] = self._read(path, offset, left, to_end)
                left -= self._told[path.name] - offset
                self.tell(lines)
                self._seen[path.name] = size if to_end else -1
        return left < AT_ONCE_BYTES

    def _read(
        self, path: Path, offset: int, at_most: int, to_end: bool
    ) -> tuple[list[LeftOut], int]:
        """The entries from `offset` on and the offset behind them; what is wrong is told."""
        end, last = noted_end(path), number_before(path, offset)
        lines, behind = whole_lines(path, offset, at_most)
        entries = []
        for line in lines:
            plain, number, sound = open_line(line, path.name)
            if not sound:
                self._tell_damage(f"{path.name} has a line that was changed")
            if plain is None or not sound:
                continue
            if number is not None and number > last + 1:
                self._tell_damage(f"{path.name} lacks entries that it once held")
            last = number or last
            with suppress(ValueError, KeyError, TypeError):  # another release wrote it
                entries.append(LeftOut.read(plain))
        if last < end and to_end:
            self._tell_damage(f"{path.name} lacks entries that it once held")
        return entries, behind

    def _tell_damage(self, what: str) -> None:
        if what not in self._damaged:
            self._damaged.add(what)
            self._faults.note("left_out", what)

    def _noted(self, path: Path) -> dict[str, int]:
        """Nothing where there is no note, or none that can be read: then all is told again."""
        try:
            plain, _, sound = open_line(read_plain(path))
        except OSError:
            return {}
        if plain is None or not sound:
            self._tell_damage(f"{path.name} was damaged: all is told again")
            return {}
        told = {name: offset for name, offset in plain.items() if name.endswith(".jsonl")}
        return {name: offset for name, offset in told.items() if isinstance(offset, int)}

    def _idle(self) -> float | None:
        if not self._lingers or time.monotonic() - self._news_at > LINGER_S:
            return None if self._told == self._kept else PAUSE_S
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return self._pause_s
