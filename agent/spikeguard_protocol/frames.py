"""How a record lies in a segment: a header with length and checksum, then the payload.

Invariants
- Pure. A frame is read back as it was written or not at all; the attempt is part of the checksum,
  so a frame of another attempt is none.
- Behind damaged bytes reading goes on at the next whole frame.
- Every frame says how many records and samples came before it, so whatever is missing between two
  frames can be counted.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"\xffSG1"  # a byte that no JSON text contains comes first
_HEADER = struct.Struct("<4sIIBBBxIQQIQd")
_PACK, _UNPACK, _SIZE = _HEADER.pack, _HEADER.unpack_from, _HEADER.size
HEADER_BYTES = _SIZE
MOST_PAYLOAD = 4 * 2**20  # bytes; what claims to be longer is damaged


class Kind(IntEnum):
    """What a record is for; load shedding goes by it."""

    SAMPLE = 1
    DETAIL = 2  # norms by layer
    NEWS = 3  # snapshots, checkpoints, skipped batches: the run's directory has them too
    ESSENTIAL = 4  # commands' results, segments, the attempt's beginning and end
    SHED = 5  # in place of records that went for want of room
    LOST = 6  # in place of records that were damaged


_KINDS = frozenset(map(int, Kind))


class Position(NamedTuple):
    """A place between two records of an attempt."""

    number: int = 1  # of the record that comes next
    total: int = 0  # samples before it


BEGINNING = Position()


class Frame(NamedTuple):
    """One record, or one stretch of records that is gone."""

    kind: Kind
    number: int  # of the record, from 1 without holes within the attempt
    message: int  # that carries it
    samples: int  # steps that it has, or had, measurements of
    total: int  # samples of all records before it
    at: float  # seconds since the epoch, as the attempt's clock stood at its start
    payload: bytes
    kept: bool = False  # the surroundings of it are worth more than other samples
    span: int = 1  # records that it stands for
    level: int = 0  # how far the segment was thinned when this was written

    @property
    def start(self) -> Position:
        """Before it."""
        return Position(self.number, self.total)

    @property
    def end(self) -> Position:
        """Behind it."""
        return Position(self.number + self.span, self.total + self.samples)

    def packed(self, seed: int) -> bytes:
        """The bytes in a segment."""
        header = _PACK(
            MAGIC,
            0,
            len(self.payload),
            self.kind,
            self.level,
            self.kept,
            self.span,
            self.number,
            self.message,
            self.samples,
            self.total,
            self.at,
        )
        checked = zlib.crc32(self.payload, zlib.crc32(header[8:], seed))
        return b"".join((MAGIC, checked.to_bytes(4, "little"), header[8:], self.payload))


def seed_of(attempt: str) -> int:
    """What the checksums of an attempt begin with."""
    return zlib.crc32(attempt.encode())


def first_frame(data: bytes, seed: int) -> Frame | None:
    """The one that `data` begins with."""
    found = _frame_at(data, 0, seed)
    return found[0] if found else None


def read_frames(data: bytes, seed: int) -> tuple[list[Frame], int]:
    """Every whole frame in `data` by number, each once; how many bytes belong to none."""
    found: dict[int, Frame] = {}
    place, damaged, sorted_so_far, newest = 0, 0, True, 0
    while place < len(data):
        read = _frame_at(data, place, seed)
        if read is None:
            following = data.find(MAGIC, place + 1)
            following = len(data) if following < 0 else following
            damaged += following - place
            place = following
            continue
        frame, place = read
        sorted_so_far &= frame.number > newest
        newest = frame.number
        found.setdefault(frame.number, frame)
    frames = list(found.values())
    return (frames if sorted_so_far else sorted(frames, key=lambda f: f.number)), damaged


def _frame_at(data: bytes, place: int, seed: int) -> tuple[Frame, int] | None:
    """The frame that begins there and where it ends."""
    if place + _SIZE > len(data) or not data.startswith(MAGIC, place):
        return None
    header = _UNPACK(data, place)
    _, checked, length, kind, level, kept, span, number, message, samples, total, at = header
    end = place + _SIZE + length
    if end > len(data) or length > MOST_PAYLOAD or kind not in _KINDS:
        return None
    payload = data[place + _SIZE : end]
    if zlib.crc32(payload, zlib.crc32(data[place + 8 : place + _SIZE], seed)) != checked:
        return None
    return Frame(
        Kind(kind), number, message, samples, total, at, payload, bool(kept), span, level
    ), end


def missing_between(before: Position, frame: Frame) -> tuple[int, int]:
    """Records and samples that are missing between the two."""
    return max(0, frame.number - before.number), max(0, frame.total - before.total)


def with_tombstones(frames: Iterable[Frame]) -> list[Frame]:
    """`frames` with one of kind LOST for every stretch that is missing between two of them."""
    whole: list[Frame] = []
    for frame in frames:
        if whole:
            records, samples = missing_between(whole[-1].end, frame)
            if records:
                number, total = whole[-1].end
                gone = Frame(Kind.LOST, number, frame.message, samples, total, frame.at, b"")
                whole.append(gone._replace(span=records))
            elif frame.number < whole[-1].end.number:
                continue  # it lies within one that stands for it
        whole.append(frame)
    return whole
