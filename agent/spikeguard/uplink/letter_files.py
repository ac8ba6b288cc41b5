"""An attempt's messages as files: `DIR/000000000001.jsonl` is message 1, one record a line.

Law: nothing here is numbered, ordered or thinned out, and nothing locks: the outbox does. What the
disk refuses stays in the letter's own lines, so a letter is whole in one place or the other; an
open letter keeps its lines until all of its file is known to be there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from spikeguard.uplink.folder import claim, give_up, read_note, synced, write_note
from spikeguard.uplink.letter import Letter
from spikeguard.uplink.lines import decoded, encoded
from spikeguard_protocol import Gap, Record

OLDEST_S = 9e8  # a clock that stood at 1970 dates a file further back than a message may say
_NUMBER = re.compile(r"[0-9]{1,15}")


class LetterFiles:
    """Of one folder, which nobody else may use meanwhile."""

    def __init__(self, folder: Path | None) -> None:
        """None: there is no disk, every letter stays in memory. Raise OSError if it cannot be
        claimed."""
        self.folder = folder
        self._own = -1 if folder is None else claim(folder)
        self._open: IO[bytes] | None = None  # of the letter that is being written

    def left(self) -> tuple[list[Letter], int, bool]:
        """What a killed attempt left: its letters, the highest number, whether it had ended."""
        newest, ended = read_note(self._own) if self.folder is not None else (0, False)
        letters = []
        for path in self._left_files():
            with suppress(OSError):  # gone meanwhile
                stat = path.stat()
                age = min(max(0.0, time.time() - stat.st_mtime), OLDEST_S)
                newest = max(newest, int(path.stem))
                letters.append(Letter(int(path.stem), stat.st_size, 1, time.monotonic() - age))
        return letters, newest, ended

    def _left_files(self) -> list[Path]:
        found = self.folder.glob("*.jsonl") if self.folder is not None else []
        return sorted(path for path in found if _NUMBER.fullmatch(path.stem))

    def append(self, letter: Letter, line: bytes) -> None:
        """Write one more line of the open letter, if the disk lets us: sealing sees to it."""
        with suppress(OSError):
            if self._open is None:
                self._open = self._path(letter).open("ab")
            self._open.write(line)

    def flush(self) -> None:
        """Let a killed job lose nothing of what was appended."""
        if self._open is not None:
            with suppress(OSError):  # sealing sees that the file is short
                self._open.flush()

    def seal(self, letter: Letter) -> None:
        """The letter is whole: its lines go where all of its file is on the disk."""
        file, self._open = self._open, None
        if file is not None and synced(file) and self._is_whole(letter):
            letter.lines = None

    def _is_whole(self, letter: Letter) -> bool:
        try:
            return self._path(letter).stat().st_size == letter.size
        except OSError:
            return False

    def read(self, letter: Letter) -> list[Record]:
        """Its records; raise OSError where the disk cannot be read."""
        lines = letter.lines
        try:
            if lines is None:
                lines = self._path(letter).read_bytes().splitlines() if letter.size else []
        except FileNotFoundError:
            return [Gap(letter.sequence, letter.sequence, "its file was removed", 0)]
        return [record for line in lines if (record := decoded(line)) is not None]

    def rewrite(self, letter: Letter, records: Iterable[Record]) -> None:
        """Let the letter say `records` in place of what it said."""
        lines = [encoded(record) for record in records]
        letter.size, letter.records = sum(map(len, lines)), len(lines)
        letter.lines = lines
        with suppress(OSError):  # it stays in memory
            path = self._path(letter)
            path.with_suffix(".new").write_bytes(b"".join(lines))
            path.with_suffix(".new").replace(path)
            letter.lines = None

    def remove(self, letter: Letter) -> None:
        """It has arrived."""
        with suppress(OSError):  # of a disk that is gone: then it lies in memory
            self._path(letter).unlink(missing_ok=True)

    def note(self, sequence: int, *, ended: bool) -> None:
        """For whoever finds this later: the highest number, and whether more will come."""
        if self._own >= 0:
            write_note(self._own, sequence, "ended" if ended else "open")

    def stop_writing(self) -> None:
        """Close what is open; it may be whole or not."""
        if self._open is not None:
            with suppress(OSError):  # of a disk that is gone
                self._open.close()
            self._open = None

    def give_up(self, used_up: bool) -> None:
        """Let others claim the folder; one that is `used_up` goes."""
        own, self._own = self._own, -1  # the number may be somebody else's file in a moment
        if own >= 0 and self.folder is not None:
            give_up(self.folder, own, used_up=used_up)

    def _path(self, letter: Letter) -> Path:
        if self.folder is None:
            raise FileNotFoundError("this outbox lies in memory")
        return self.folder / f"{letter.sequence:012d}.jsonl"
