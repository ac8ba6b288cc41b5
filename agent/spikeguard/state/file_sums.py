"""Sizes and checksums of a checkpoint's files: made while they are written, checked before use.

`zlib.crc32` of each block of 64 MiB. Of what DCP writes it is taken of the bytes on their way to
the file; of what others wrote, by reading their files.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
BLOCK = 64 * 2**20  # bytes of a file that have one checksum
CHUNK = 2**20  # bytes that are read at once
THREADS = min(4, os.cpu_count() or 1)  # zlib and the disk both work without Python's lock


DIGITS = 8  # of a checksum, hexadecimal


@dataclass(frozen=True, slots=True)
class FileSum:
    """Bytes of a file, and the checksums of its blocks, one after the other."""

    size: int
    crc32: str

    def plain(self) -> dict[str, Any]:
        """For a file."""
        return {"size": self.size, "crc32": self.crc32}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> FileSum:
        """Back from a file; raise ValueError, KeyError or TypeError for what is none."""
        size, crc32 = int(plain["size"]), str(plain["crc32"])
        if len(crc32) != DIGITS * -(-size // BLOCK):
            raise ValueError("a file has other blocks than its size says")
        return cls(size, crc32)

    @property
    def blocks(self) -> int:
        return len(self.crc32) // DIGITS

    def of_block(self, number: int) -> str:
        return self.crc32[DIGITS * number : DIGITS * (number + 1)]


FileSums = Mapping[str, FileSum]  # by path inside the folder


class Running:
    """The sums of bytes that come one after the other."""

    def __init__(self) -> None:
        self.size = 0
        self._blocks: list[int] = []

    def add(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            if self.size % BLOCK == 0:
                self._blocks.append(0)
            piece = view[: BLOCK - self.size % BLOCK]
            self._blocks[-1] = zlib.crc32(piece, self._blocks[-1])
            self.size += len(piece)
            view = view[len(piece) :]

    def sum(self) -> FileSum:
        return FileSum(self.size, "".join(f"{crc:08x}" for crc in self._blocks))


def beside_the_loop(read: Callable[[], T]) -> Future[T]:
    """What `read` returns or raises, from a thread of its own."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(read())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name="spikeguard-checksums", daemon=True).start()
    return done


def sums_of(folder: Path, but: Iterable[str] = ()) -> dict[str, FileSum]:
    """Those of all files in `folder`, read from it; `but`: names that are left out."""
    left_out = set(but)
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in found if path.name not in left_out]
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(names, pool.map(lambda name: _sum_of(folder / name), names), strict=True))


def damage(folder: Path, sums: FileSums, part: int = 0, parts: int = 1) -> str | None:
    """What of `folder` is not as it was written; None where all is.

    Looks at the sizes of all files, and at the content of one of `parts` about equal shares of the
    blocks, so that as many ranks read each block once. Raises nothing.
    """
    for name, known in sums.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if size != known.size:
            return f"{name} has {size} bytes, not the {known.size} that were written"
    names = sorted(sums, key=_by_numbers)
    blocks = [(name, block) for name in names for block in range(sums[name].blocks)]
    share = blocks[len(blocks) * part // parts : len(blocks) * (part + 1) // parts]
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda each: _block_damage(folder, sums, *each), share)
        return next((problem for problem in found if problem is not None), None)


def _block_damage(folder: Path, sums: FileSums, name: str, block: int) -> str | None:
    begins = block * BLOCK
    ends = min(sums[name].size, begins + BLOCK)
    try:
        with (folder / name).open("rb") as file:
            file.seek(begins)
            running = _read(file, ends - begins)
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if running.sum() == FileSum(ends - begins, sums[name].of_block(block)):
        return None
    return f"{name} has changed since it was written, between bytes {begins} and {ends}"


def _sum_of(path: Path) -> FileSum:
    with path.open("rb") as file:
        return _read(file, None).sum()


def _read(file: Any, at_most: int | None) -> Running:
    """Of so many bytes from here on; None: to the end."""
    running, buffer = Running(), memoryview(bytearray(CHUNK))
    while at_most is None or running.size < at_most:
        wanted = CHUNK if at_most is None else min(CHUNK, at_most - running.size)
        count = file.readinto(buffer[:wanted])
        if not count:
            break
        running.add(buffer[:count])
    return running


def _by_numbers(name: str) -> tuple[Any, ...]:
    """`__2_0.distcp` before `__10_0.distcp`: a rank's share is about what it wrote itself."""
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"([0-9]+)", name))
