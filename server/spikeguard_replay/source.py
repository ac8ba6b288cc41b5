"""The text of a log: from a file, a pipe or standard input; packed or not; in any encoding."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, cast

from spikeguard_cli.command import CommandFailed

LARGEST: Final = 2 * 2**30  # bytes of a log
HEAD: Final = 2**16  # bytes from which format and encoding are told
STANDARD_INPUT: Final = Path("-")
_BYTE_ORDER_MARKS: Final = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"


class Source:
    """The bytes of one log, unpacked. `name` is what errors call it."""

    def __init__(self, path: Path, stream: IO[bytes] | None = None) -> None:
        self.path = path
        self.name = "standard input" if path == STANDARD_INPUT else str(path)
        self._stream = self._unpacked(stream if stream is not None else self._opened())
        self.head = self._stream.read(HEAD)

    def _opened(self) -> IO[bytes]:
        if self.path == STANDARD_INPUT:
            return _held(self.name, sys.stdin.buffer)
        if not self.path.is_file():  # a pipe can be read once only
            with self.path.open("rb") as pipe:
                return _held(self.name, pipe)
        check_size(self.path)
        return self.path.open("rb")

    def _unpacked(self, stream: IO[bytes]) -> IO[bytes]:
        begin = stream.read(4)
        stream.seek(0)
        if begin.startswith(b"\x1f\x8b"):
            return _bounded_stream(self.name, cast(IO[bytes], gzip.GzipFile(fileobj=stream)))
        if begin.startswith(b"BZh"):
            return _bounded_stream(self.name, bz2.BZ2File(stream))
        if begin == b"\xfd7zX":
            return _bounded_stream(self.name, lzma.LZMAFile(stream))
        return self._zstandard(stream) if begin == _ZSTANDARD else stream

    def _zstandard(self, stream: IO[bytes]) -> IO[bytes]:
        for module in ("compression.zstd", "zstandard", "backports.zstd"):
            try:
                opened: IO[bytes] = import_module(module).open(stream, "rb")
            except ImportError:
                continue
            return _held(self.name, opened)
        raise CommandFailed(
            f"{self.name}: packed by zstd: unpack it (`zstd -d`), or pip install zstandard"
        )

    def text(self) -> io.TextIOWrapper:
        """The whole log as lines; a carriage return ends one, as those of progress bars do."""
        self._stream.seek(0)
        reader = io.TextIOWrapper(
            self._stream, encoding=self._encoding(), errors="replace", newline=None
        )
        reader.read(0)
        return reader

    def _encoding(self) -> str:
        """By its mark, else by where zero bytes stand; raises `CommandFailed` for no text."""
        for mark, encoding in _BYTE_ORDER_MARKS:
            if self.head.startswith(mark):
                return encoding
        zeros = self.head.count(0)
        if zeros:
            even = self.head[::2].count(0)
            if zeros > len(self.head) // 3 and min(even, zeros - even) < zeros // 20:
                return "utf-16-be" if even > zeros - even else "utf-16-le"
        control = sum(byte < 9 or 13 < byte < 27 for byte in self.head)
        if control > len(self.head) // 20:
            raise CommandFailed(
                f"{self.name}: no text, and no file of a tool that is known: "
                "give the log that the training job printed or wrote"
            )
        return "utf-8"


def _held(name: str, stream: IO[bytes]) -> IO[bytes]:
    """All that a stream gives, in memory: it cannot be read twice."""
    data = stream.read(LARGEST + 1)
    _bounded(name, len(data))
    return io.BytesIO(data)


class _Bounded(io.RawIOBase):
    """What a packed file gives, up to the size of a log: a few bytes can stand for any number."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self._name, self._stream, self._read = name, stream, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._read = 0
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._stream.read(len(view))
        except EOFError:  # cut off, as a job that still writes leaves it
            data = b""
        except (OSError, zlib.error, lzma.LZMAError) as error:
            raise CommandFailed(f"{self._name}: cannot be unpacked: {error}") from error
        self._read = _bounded(self._name, self._read + len(data))
        view[: len(data)] = data
        return len(data)


def _bounded_stream(name: str, stream: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(_Bounded(name, stream), 2**16)


def check_size(path: Path, before: int = 0) -> int:
    """Bytes of the file and of those read `before` it; raises `CommandFailed` where they are too
    many."""
    return _bounded(str(path), before + path.stat().st_size)


def _bounded(name: str, size: int) -> int:
    if size > LARGEST:
        raise CommandFailed(
            f"{name}: {size:,} bytes, {LARGEST:,} at most: cut the log in parts, or thin it out"
        )
    return size
