"""The text of a log: from a file, a pipe or standard input; packed or not; in any encoding."""

from __future__ import annotations

import io
import lzma
import sys
import zipfile
import zlib
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from spikeguard_cli.command import CommandFailed

_PACKED: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\0", "lzma"),
    (b"\x28\xb5\x2f\xfd", "zstandard"),
)
_NO_TEXT: Final = (
    "no text: give the log that the training job printed or wrote. Unpack an archive, fetch what "
    "is in Git LFS (`git lfs pull`), write a table, tensors or a pickle as CSV"
)
LARGEST: Final = 2 * 2**30  # bytes of a log
HEAD: Final = 2**16  # bytes from which format and encoding are told
STANDARD_INPUT: Final = Path("-")
_BYTE_ORDER_MARKS: Final = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


class Source:
    """The bytes of one log, unpacked. `name` is what errors call it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._stream = self._unpacked(self._opened())
        self._begin = 0  # behind the zeros of a file that was emptied while the job wrote on
        while (head := self._stream.read(HEAD)).startswith(b"\0" if self._begin else bytes(4)):
            self._begin += len(head) - len(head.lstrip(b"\0"))
            self._stream.seek(self._begin)
        self.head = head

    def _from_begin(self) -> IO[bytes]:
        self._stream.seek(self._begin)
        return self._stream

    def _opened(self) -> IO[bytes]:
        if self.path == STANDARD_INPUT:
            return self._whole(sys.stdin.buffer)
        if not self.path.is_file():  # a pipe can be read once only
            with self.path.open("rb") as pipe:
                return self._whole(pipe)
        check_size(str(self.path), self.path.stat().st_size)
        return self.path.open("rb")

    def _unpacked(self, stream: IO[bytes]) -> IO[bytes]:
        begin = stream.read(6)
        stream.seek(0)
        for mark, module in _PACKED:
            if begin.startswith(mark):
                try:
                    return self._whole(import_module(module).open(stream, "rb"))
                except ImportError:
                    raise CommandFailed(
                        f"{self.name}: packed by zstd: unpack it (`zstd -d`), or "
                        "pip install zstandard"
                    ) from None
        return stream

    def _whole(self, stream: Any) -> IO[bytes]:
        """All that a stream gives, in memory: it cannot be read twice."""
        data = io.BytesIO()
        try:
            while piece := stream.read1(2**20):
                data.write(piece)
                check_size(self.name, data.tell())
        except EOFError:  # cut off, as a job that still writes leaves it
            pass
        except (OSError, zlib.error, lzma.LZMAError) as error:
            raise CommandFailed(f"{self.name}: cannot be unpacked: {error}") from error
        data.seek(0)
        return data

    def text(self) -> io.TextIOWrapper:
        """The whole log as lines; a carriage return ends one, as those of progress bars do."""
        encoding = self._encoding()
        return io.TextIOWrapper(self._from_begin(), encoding=encoding, errors="replace")

    def arrays(self) -> Any | None:
        """What `numpy.save` or `numpy.savez` wrote, as lists; None for any other file.

        Raises `CommandFailed` for arrays of objects: they are pickled, and not unpickled here.
        """
        one, several = self.head.startswith(b"\x93NUMPY"), b".npy" in self.head[:200]
        if not one and not (several and self.head.startswith(b"PK\x03\x04")):
            return None
        try:
            found = np.load(self._from_begin(), allow_pickle=False)
            return found.tolist() if one else {name: found[name].tolist() for name in found.files}
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise CommandFailed(f"{self.name}: cannot be read as NumPy's arrays: {error}") from None

    def _encoding(self) -> str:
        """By its mark, else by where zero bytes stand; raises `CommandFailed` for no text."""
        for mark, encoding in _BYTE_ORDER_MARKS:
            if self.head.startswith(mark):
                return encoding
        zeros, even = self.head.count(0), self.head[::2].count(0)
        if zeros > len(self.head) // 3 and min(even, zeros - even) < zeros // 20:
            return "utf-16-be" if even > zeros - even else "utf-16-le"
        text = self.head.replace(bytes(512), b"")  # blocks that were lost when a machine went down
        control = sum(byte < 8 or 13 < byte < 27 for byte in text)  # bars go back by 8
        said = self.head.startswith(b"version https://git-lfs") or self.head[257:262] == b"ustar"
        if said or control > len(text) // 20:
            raise CommandFailed(f"{self.name}: {_NO_TEXT}")
        return "utf-8"


def check_size(name: str, size: int) -> None:
    """Raise `CommandFailed` for more bytes than a log may have."""
    if size > LARGEST:
        raise CommandFailed(
            f"{name}: {size:,} bytes, {LARGEST:,} at most: cut the log in parts, or thin it out"
        )
