"""The folders of checkpoints: which are this product's, and the only place where it removes any;
sizes and checksums (`zlib.crc32`) of the files in them, made once they are written, checked before
use.

A folder may be removed if it has a name that spikeguard gives and holds a marker. `claim` writes
the marker into an empty folder, before anything else lies there, so a folder that somebody else
filled never gets one.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

MARKER = ".spikeguard"
_SAID = b"Written by spikeguard, which removes this folder when no rollback needs it any more.\n"


def claim(folder: Path) -> None:
    """Make `folder` ours before anything is written there; raise OSError where it is another's."""
    folder.mkdir(parents=True, exist_ok=True)
    if _is_marked(folder):
        return
    if any(folder.iterdir()):
        said = "holds files that spikeguard did not write: move it elsewhere"
        raise FileExistsError(errno.EEXIST, said, str(folder))
    with (folder / MARKER).open("wb") as file:
        file.write(_SAID)
        file.flush()
        os.fsync(file.fileno())


def is_owned(folder: Path, names: re.Pattern[str]) -> bool:
    """Whether `folder` has one of the `names` that we give, and our marker; a link has not."""
    return bool(names.fullmatch(folder.name)) and not folder.is_symlink() and _is_marked(folder)


def remove(folder: Path, names: re.Pattern[str]) -> bool:
    """Remove `folder` and all in it; False, and nothing is removed, where it is not owned."""
    if not is_owned(folder, names):
        return False
    with suppress(OSError):  # the marker last: a removal that is cut short can be taken up again
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != MARKER:
                entry.unlink()
        if [entry.name for entry in folder.iterdir()] == [MARKER]:
            (folder / MARKER).unlink()
            folder.rmdir()
    return True


def remove_beside(folder: Path, names: re.Pattern[str], first: str) -> bool:
    """The same in a thread, but for its file `first`, which goes at once."""
    if not is_owned(folder, names):
        return False
    (folder / first).unlink(missing_ok=True)
    name = "spikeguard-removal"
    threading.Thread(target=remove, args=(folder, names), name=name, daemon=True).start()
    return True


def sync_folder(folder: Path) -> None:
    """Have the names in it on the disk; raise OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_marked(folder: Path) -> bool:
    try:
        return (folder / MARKER).read_bytes() == _SAID
    except OSError:
        return False


# ---- checksums ---------------------------------------------------------------------------------


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
