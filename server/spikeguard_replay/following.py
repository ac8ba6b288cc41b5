"""`spikeguard replay --follow`: a log that grows, judged as it comes.

The log is read anew when it has grown, which keeps one way to read for all formats; detection goes
on from the row where it stood.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Event, Thread
from typing import IO, Final

from spikeguard_cli.command import CommandFailed, say
from spikeguard_core import events
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_protocol.escaping import printable
from spikeguard_replay.judging import Findings, batches, findings_of, monitor_of
from spikeguard_replay.listing import incident_lines, state_at_end
from spikeguard_replay.log import Log, LogOptions
from spikeguard_replay.reading import read_log
from spikeguard_replay.source import STANDARD_INPUT

EVERY_S: Final = 1.0  # between two looks, and ten times what a reading takes


class Follower:
    """What was judged and told of one growing log."""

    def __init__(self, choice: DetectorChoice) -> None:
        self._choice = choice
        self._begin()

    def _begin(self) -> None:
        self._monitor = monitor_of(self._choice)
        self._events: list[events.Event] = []
        self._taken = 0
        self._columns: object = None
        self._told: list[str] = []
        self.log: Log | None = None

    def take(self, log: Log, held: int = 0) -> None:
        """Judge the rows that are new, but for the last `held`, and print what changed."""
        if log.columns != self._columns or len(log) < self._taken:
            self._begin()
            self._columns = log.columns
            say(f"spikeguard: {log.described()}", to_error=True)
        end = max(len(log) - held, self._taken)
        for portion in batches(log, self._taken, end):
            self._events += self._monitor.observe(portion)
        self._taken, self.log = end, log
        told = [
            incident_lines(number, one)
            for number, one in enumerate(self.findings.incidents, start=1)
        ]
        for number, text in enumerate(told):
            if self._told[number : number + 1] != [text]:
                print(printable(text, keep="\n"), flush=True)
        self._told = told

    @property
    def findings(self) -> Findings:
        """All that was found so far."""
        assert self.log is not None
        return findings_of(self._events, self.log, self._monitor)

    def end(self) -> int:
        """Print where the run stands."""
        if self.log is None:
            raise CommandFailed("nothing that can be read came: give the log without --follow")
        self.take(self.log)
        print(f"\n{state_at_end(self.findings, self.log)}", flush=True)
        return 0


def follow(path: Path, options: LogOptions, choice: DetectorChoice) -> int:
    """Follow a file until interrupted, or standard input to its end."""
    follower, ended = Follower(choice), Event()
    with NamedTemporaryFile(prefix="standard-input-") as copy:
        if path == STANDARD_INPUT:
            path = Path(copy.name)
            Thread(target=_copy, args=(copy, ended), daemon=True).start()
        with suppress(KeyboardInterrupt):
            _follow_file(follower, path, options, ended)
    return follower.end()


def _copy(copy: IO[bytes], ended: Event) -> None:
    """Standard input as it comes, to a file that can be read anew."""
    while data := os.read(sys.stdin.fileno(), 2**16):
        copy.write(data)
        copy.flush()
    ended.set()


def _follow_file(follower: Follower, path: Path, options: LogOptions, ended: Event) -> None:
    seen, last = None, False
    while True:
        state = path.stat() if path.exists() else None
        now = None if state is None else (state.st_size, state.st_mtime_ns, state.st_ino)
        took = 0.0
        if now != seen:
            seen, began = now, time.monotonic()
            _try(follower, path, options)
            took = time.monotonic() - began
        if last:
            return
        last = ended.wait(max(EVERY_S, 10 * took))


def _is_unfinished(path: Path) -> bool:
    """Whether the job is in the middle of a line: its number may go on."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() not in (b"\n", b"\r", b"\0")


def _try(follower: Follower, path: Path, options: LogOptions) -> None:
    """Take what can be read by now: the first lines of a log often hold no loss yet."""
    held = int(_is_unfinished(path))
    try:
        log = read_log(path, options)
    except CommandFailed:
        if follower.log is not None:
            raise
        return
    follower.take(log, held)
