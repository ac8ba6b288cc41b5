"""An append-only log in segments: `DIR/000000000001.log` holds record 1 and those behind it.

`DIR/lock` is held by the one process that writes; the last numbers stand in it too, so that a log
whose end is missing shows it.

Invariants
- Nothing here locks, numbers or drops anything: the outbox does.
- What `append` returned from is in the file, whole; what it raised for is not.
- A segment is written by one open file, closed before it is read, thinned or removed.
- No link is followed and nothing is opened that is no file: all names are looked up in the folder
  that was opened, whatever lies at its path meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spikeguard_protocol.frames import BEGINNING, Frame, Position, first_frame, read_frames, seed_of

SEGMENT_BYTES = 2**20
MOST_BYTES = 16 * SEGMENT_BYTES  # of a file that is read; the rest of a longer one is damaged
LOCK, FRESH = "lock", "fresh"
_NAME = re.compile(r"([0-9]{12,15})(?:-[0-9]{1,3})?\.log")
_FIRST_BYTES = 4096  # enough for most frames
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC


class Note(NamedTuple):
    """What stands outside the log, for whoever finds it."""

    newest: int = 0  # message that got a number
    end: Position = BEGINNING  # of the log
    acknowledged: int = 0  # message that the server has
    acknowledged_to: Position = BEGINNING
    ended: bool = False  # the attempt said its last word

    def text(self, seed: int) -> bytes:
        """One line with its checksum."""
        numbers = (self.newest, *self.end, self.acknowledged, *self.acknowledged_to)
        line = " ".join([*(f"{n:015d}" for n in numbers), "ended" if self.ended else "open "])
        return f"{line} {zlib.crc32(line.encode(), seed):08x}\n".encode()

    @classmethod
    def read(cls, text: bytes, seed: int) -> Note | None:
        """None for what is no such line."""
        line, _, checked = text.partition(b"\n")[0].rpartition(b" ")
        if f"{zlib.crc32(line, seed):08x}".encode() != checked:
            return None
        *numbers, state = line.split()
        newest, number, total, acknowledged, to_number, to_total = map(int, numbers)
        return cls(
            newest,
            Position(number, total),
            acknowledged,
            Position(to_number, to_total),
            state == b"ended",
        )


@dataclass(slots=True)
class Segment:
    """One file."""

    name: str
    number: int  # of its first record
    size: int
    last_message: int = 0  # 0: not known
    level: int = 0  # how far it was thinned


class Log:
    """The segments of one attempt; `folder` None: there is no disk, and every write raises."""

    def __init__(self, folder: Path | None, attempt: str, segment_bytes: int) -> None:
        """Raise OSError (BlockingIOError) where the folder cannot be claimed."""
        self.folder, self.seed, self.segment_bytes = folder, seed_of(attempt), segment_bytes
        self.segments: list[Segment] = []
        self.foreign: list[str] = []  # files that are none of ours
        self.note: Note | None = None  # as it was found
        self.fresh = True  # nobody has written here before
        self._directory = self._lock = -1
        self._file = -1
        if folder is not None:
            self._claim(folder)

    def _claim(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._directory = os.open(folder, _READ | os.O_DIRECTORY)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            self._lock = os.open(LOCK, flags, 0o600, dir_fd=self._directory)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.pread(self._lock, 200, 0)
            self._list()
        except OSError:
            self.close(used_up=False)
            raise
        self.note, self.fresh = Note.read(found, self.seed), not (found or self.segments)
        self._order()

    def _list(self) -> None:
        for name in sorted(os.listdir(self._directory)):
            match = _NAME.fullmatch(name)
            if match is not None:
                with suppress(OSError):  # gone meanwhile
                    size = os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_size
                    self.segments.append(Segment(name, int(match[1]), size))
            elif name not in (LOCK, FRESH):
                self.foreign.append(name)

    def _order(self) -> None:
        """By what they begin with, whatever their names say."""
        for segment in self.segments:
            first = None
            with suppress(OSError):
                data = self._read(segment, _FIRST_BYTES)
                first = first_frame(data, self.seed)
                if first is None and len(data) == _FIRST_BYTES:
                    first = first_frame(self._read(segment, MOST_BYTES), self.seed)
            if first is not None:
                segment.number, segment.level = first.number, first.level
        self.segments.sort(key=lambda s: (s.number, s.name))

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def writing(self) -> Segment | None:
        """The segment that is written to."""
        return self.segments[-1] if self._file >= 0 else None

    def append(self, frames: Iterable[Frame], number: int, last_message: int) -> None:
        """Write all of `frames`, the first of which has `number`, or nothing; raise OSError."""
        data = b"".join(frame.packed(self.seed) for frame in frames)
        segment = self.writing or self._begin(number)
        try:
            if os.write(self._file, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._take_back(segment)
            raise
        segment.size += len(data)
        segment.last_message = last_message

    def _begin(self, number: int) -> Segment:
        if self._directory < 0:
            raise FileNotFoundError(errno.ENOENT, "this outbox lies in memory")
        for suffix in ("", "-1", "-2", "-3"):
            name = f"{number:012d}{suffix}.log"
            with suppress(FileExistsError):
                self._file = os.open(name, _MAKE, 0o600, dir_fd=self._directory)
                segment = Segment(name, number, 0)
                self.segments.append(segment)
                return segment
        raise FileExistsError(errno.EEXIST, f"files called {number:012d}.log are in the way")

    def _take_back(self, segment: Segment) -> None:
        with suppress(OSError):
            os.ftruncate(self._file, segment.size)
        self.rotate()
        if not segment.size:
            self.remove(segment)

    def sync(self) -> None:
        """Have the disk hold what was appended; raise OSError."""
        if self._file >= 0:
            os.fdatasync(self._file)
            if not os.fstat(self._file).st_nlink:  # somebody removed it
                self.rotate()

    def rotate(self) -> None:
        """Write no more to the segment."""
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)

    def rotate_if_full(self) -> None:
        """Begin another segment with the next record where this one is long enough."""
        segment = self.writing
        if segment is not None and segment.size >= self.segment_bytes:
            self.rotate()

    def read(self, segment: Segment) -> tuple[list[Frame], int]:
        """Its frames, and how many bytes are damaged; raise OSError where the disk is away."""
        try:
            data = self._read(segment, MOST_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):  # removed, or a link in its place
                return [], segment.size or 1
            raise
        frames, damaged = read_frames(data, self.seed)
        if not data:
            damaged = 1
        return frames, damaged

    def _read(self, segment: Segment, at_most: int) -> bytes:
        handle = os.open(segment.name, _READ, dir_fd=self._directory)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return b""
            return file.read(min(found.st_size, at_most))

    def replace(self, segment: Segment, frames: list[Frame]) -> None:
        """Let the segment hold `frames` instead, on the disk before the old ones go."""
        if not frames:
            self.remove(segment)
            return
        data = b"".join(frame.packed(self.seed) for frame in frames)
        with suppress(FileNotFoundError):
            os.unlink(FRESH, dir_fd=self._directory)
        handle = os.open(FRESH, _MAKE, 0o600, dir_fd=self._directory)
        try:
            if os.write(handle, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(handle)
        finally:
            os.close(handle)
        os.rename(FRESH, segment.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        segment.size = len(data)

    def remove(self, segment: Segment) -> None:
        """It is needed no more."""
        if segment is self.writing:
            self.rotate()
        self.segments.remove(segment)
        with suppress(OSError):  # of a disk that is gone
            os.unlink(segment.name, dir_fd=self._directory)

    def write_note(self, note: Note) -> None:
        """For whoever finds this later."""
        if self._lock >= 0:
            with suppress(OSError):
                os.pwrite(self._lock, note.text(self.seed), 0)

    def close(self, used_up: bool) -> None:
        """Let others claim the folder; one that is `used_up` goes, unless others' files lie there.

        The numbers of the files may be somebody else's in a moment.
        """
        self.rotate()
        directory, self._directory = self._directory, -1
        lock, self._lock = self._lock, -1
        if used_up and directory >= 0 and self.folder is not None:
            with suppress(OSError):
                for name in (FRESH, *(segment.name for segment in self.segments), LOCK):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
                self.folder.rmdir()
        for handle in (lock, directory):
            if handle >= 0:
                with suppress(OSError):  # what a network's file system says as it closes
                    os.close(handle)
