"""Sizes and checksums (`zlib.crc32`) of a checkpoint's files: made once they are written, checked
before use.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
CHUNK = 2**20  # bytes that are read at once
THREADS = min(4, os.cpu_count() or 1)  # zlib and the disk both work without Python's lock


@dataclass(frozen=True, slots=True)
class FileSum:
    """Bytes of a file, and their checksum."""

    size: int
    crc32: int


FileSums = Mapping[str, FileSum]  # by path inside the folder


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
        return dict(zip(names, pool.map(lambda name: sum_of(folder / name), names), strict=True))


def damage(folder: Path, sums: FileSums, part: int = 0, parts: int = 1) -> str | None:
    """What of `folder` is not as it was written; None where all is.

    Looks at the sizes of all files, and at the content of one of `parts` equal shares of them, so
    that as many ranks read each once. Raises nothing.
    """
    for name, known in sums.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if size != known.size:
            return f"{name} has {size} bytes, not the {known.size} that were written"
    names = sorted(sums)
    share = names[len(names) * part // parts : len(names) * (part + 1) // parts]
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda name: _changed(folder / name, sums[name]), share)
        return next(
            (f"{n} {problem}" for n, problem in zip(share, found, strict=True) if problem), None
        )


def _changed(path: Path, known: FileSum) -> str:
    try:
        return "" if sum_of(path) == known else "has changed since it was written"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def sum_of(path: Path) -> FileSum:
    """Read from it; raise OSError."""
    size, crc, buffer = 0, 0, memoryview(bytearray(CHUNK))
    with path.open("rb") as file:
        while count := file.readinto(buffer):
            size, crc = size + count, zlib.crc32(buffer[:count], crc)
    return FileSum(size, crc)
