"""`spikeguard replay --follow`: a log that grows, judged as it comes.

The log is read anew when it has grown, which keeps one way to read for all formats; detection goes
on from the row where it stood.
"""

from __future__ import annotations

import io
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from spikeguard_cli.command import CommandFailed, say
from spikeguard_core.events import Event
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_protocol.escaping import printable
from spikeguard_replay.judging import Findings, batches, findings_of, monitor_of
from spikeguard_replay.listing import incident_lines, state_at_end
from spikeguard_replay.log import Log, LogOptions
from spikeguard_replay.reading import read_log, read_source
from spikeguard_replay.source import LARGEST, STANDARD_INPUT, Source

EVERY_S: Final = 1.0  # between two looks, and ten times what a reading takes


class Follower:
    """What was judged and told of one growing log."""

    def __init__(self, choice: DetectorChoice) -> None:
        self._choice = choice
        self._begin()

    def _begin(self) -> None:
        self._monitor = monitor_of(self._choice)
        self._events: list[Event] = []
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
    follower = Follower(choice)
    try:
        if path == STANDARD_INPUT:
            _follow_pipe(follower, options)
        else:
            _follow_file(follower, path, options)
    except KeyboardInterrupt:
        pass
    return follower.end()


def _follow_file(follower: Follower, path: Path, options: LogOptions) -> None:
    seen: object = None
    while True:
        state = path.stat() if path.exists() else None
        now = None if state is None else (state.st_size, state.st_mtime_ns, state.st_ino)
        took = 0.0
        if now != seen:
            seen, began = now, time.monotonic()
            held = int(_is_unfinished(path))
            _try(follower, lambda: read_log(path, options), held)
            took = time.monotonic() - began
        time.sleep(max(EVERY_S, 10 * took))


def _follow_pipe(follower: Follower, options: LogOptions) -> None:
    held = bytearray()
    descriptor, wait = sys.stdin.fileno(), EVERY_S
    ended = False
    while not ended:
        until, size = time.monotonic() + wait, len(held)
        while not ended and (left := until - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left)[0]:
                data = os.read(descriptor, 2**16)
                held += data
                ended = not data
        if len(held) > LARGEST:
            raise CommandFailed(f"standard input: more than {LARGEST:,} bytes: follow a file")
        if len(held) > size:
            whole = bytes(held if ended else held[: held.rfind(b"\n") + 1])
            began = time.monotonic()
            _try(
                follower,
                lambda: read_source(Source(STANDARD_INPUT, io.BytesIO(whole)), options),  # noqa: B023
            )
            wait = max(EVERY_S, 10 * (time.monotonic() - began))


def _is_unfinished(path: Path) -> bool:
    """Whether the job is in the middle of a line: its number may go on."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() not in (b"\n", b"\r", b"\0")


def _try(follower: Follower, read: Callable[[], Log], held: int = 0) -> None:
    """Take what can be read by now: the first lines of a log often hold no loss yet."""
    try:
        log = read()
    except CommandFailed:
        if follower.log is not None:
            raise
        return
    follower.take(log, held)
