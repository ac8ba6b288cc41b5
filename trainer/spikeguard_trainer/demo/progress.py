"""The one line that shows how far training has come, below the story's lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

WIDTH = 28
PLAIN_EVERY_S = 10.0  # where the output is no terminal, a line now and then


def last_row(log: Path) -> dict[str, str] | None:
    """The newest complete row of the trainer's CSV log, or None before there is one."""
    try:
        with log.open("rb") as file:
            head = file.readline().decode().strip().split(",")
            start = file.tell()
            file.seek(0, 2)
            file.seek(max(start, file.tell() - 4096))
            rows = file.read().decode().rsplit("\n", 2)
    except OSError:
        return None
    values = rows[-2].split(",") if len(rows) > 1 else []
    return dict(zip(head, values, strict=True)) if len(values) == len(head) else None


class Screen:
    """Prints lines above a progress bar that is redrawn in place."""

    def __init__(self, total: int, *, live: bool | None = None) -> None:
        self.total = total
        self.live = sys.stdout.isatty() if live is None else live
        self._started = time.monotonic()
        self._last_plain = 0.0

    def say(self, lines: Iterable[str]) -> None:
        """Print `lines`, each with the time since the start."""
        for line in lines:
            stamp = "" if line.startswith(" ") or not line else f"[{self._clock()}] "
            indent = " " * 8 if not stamp and line else ""
            print(f"{self._wipe()}{stamp}{indent}{line}", flush=True)

    def bar(self, row: dict[str, str] | None) -> None:
        """Redraw the bar from a row of the log."""
        step = int(row["step"]) if row else 0
        loss = f"loss {float(row['loss']):.3f}" if row else "loading"
        done = round(WIDTH * min(1.0, step / self.total))
        text = f"training [{'#' * done}{'.' * (WIDTH - done)}] step {step}/{self.total}  {loss}"
        if self.live:
            print(f"{self._wipe()}{text}", end="", flush=True)
        elif time.monotonic() - self._last_plain > PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            print(f"[{self._clock()}] {text}", flush=True)

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._started)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _wipe(self) -> str:
        return "\r\x1b[K" if self.live else ""
