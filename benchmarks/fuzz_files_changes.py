"""What can happen to a file: what a disk, a copy or a person does to it.

Invariants
- Pure but for the random numbers that are given. A change may leave the bytes as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Change = Callable[[Random, bytes, bytes], bytes]  # numbers, the file, another file


def _stretch(random: Random, size: int) -> tuple[int, int]:
    """Somewhere in a file, short as often as long."""
    length = min(size, 1 + int(size ** random.random()))
    first = random.randrange(size - length + 1)
    return first, first + length


def flip(random: Random, data: bytes, _: bytes) -> bytes:
    """One to eight bits."""
    changed = bytearray(data)
    for _bit in range(random.randint(1, 8) if data else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(random: Random, data: bytes, _: bytes) -> bytes:
    """The end is gone."""
    return data[: random.randrange(len(data) + 1)]


def take_out(random: Random, data: bytes, _: bytes) -> bytes:
    """A stretch is gone and the rest moved up."""
    first, end = _stretch(random, len(data)) if data else (0, 0)
    return data[:first] + data[end:]


def overwrite(random: Random, data: bytes, _: bytes) -> bytes:
    """Random bytes in place of a stretch, or of the whole file."""
    first, end = _stretch(random, len(data)) if data else (0, 0)
    if random.random() < 0.2:
        first, end = 0, len(data)
    return data[:first] + random.randbytes(end - first) + data[end:]


def blank(random: Random, data: bytes, _: bytes) -> bytes:
    """Zeros in place of a stretch, as a power loss leaves them."""
    first, end = _stretch(random, len(data)) if data else (0, 0)
    return data[:first] + bytes(end - first) + data[end:]


def swap(random: Random, data: bytes, _: bytes) -> bytes:
    """Two stretches have changed places."""
    if len(data) < 2:
        return data
    a, b, c = sorted(random.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def insert(random: Random, data: bytes, _: bytes) -> bytes:
    """Something stands there that nobody wrote."""
    place = random.randrange(len(data) + 1)
    return data[:place] + random.randbytes(random.randint(1, 300)) + data[place:]


def double(_random: Random, data: bytes, _: bytes) -> bytes:
    """The file twice."""
    return data + data


def empty(_random: Random, _data: bytes, _: bytes) -> bytes:
    """Nothing is left."""
    return b""


def exchange(_random: Random, _data: bytes, other: bytes) -> bytes:
    """What another file holds."""
    return other


CHANGES: tuple[Change, ...] = (
    flip, cut, take_out, overwrite, blank, swap, insert, double, empty, exchange,
)  # fmt: skip
