"""A folder behind a real mount, as of a network file system: FUSE, spoken to the kernel directly.

`python mounted.py FOLDER PLACE [no-locks] [delay=SECONDS] [kind=NAME]` shows FOLDER at PLACE until
it is ended; killed, it leaves a mount that answers every call with an error, as a server that is
gone does.
`no-locks`: locks are refused as Lustre and old NFS do. `delay`: what writes takes so long.
`kind`: what the kernel says it is.
Only what the agent's files need is spoken: no links, no devices, no attributes beyond the usual.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HEADER, ANSWER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
ATTRIBUTES, ENTRY = struct.Struct("<6Q10I"), struct.Struct("<QQQQII")
OPENED, READING = struct.Struct("<QII"), struct.Struct("<QQIIQII")
LONGEST = 128 * 1024  # bytes of one write
ROOT, SIZE_GIVEN, HANDLE_GIVEN, SIZE_WANTED = 1, 1 << 3, 1 << 6, 1
POSIX_LOCKS, OPEN_TRUNCATES, BIG_WRITES, FLOCKS = 1 << 1, 1 << 3, 1 << 5, 1 << 10
SILENT = (2, 36, 42)  # forget, interrupt, batch_forget: no answer
WRITERS = ("write", "fsync", "fsyncdir")


class Mounted:
    """Answers the kernel's calls with what lies in `folder`."""

    def __init__(self, folder: Path, handle: int, locks: bool, delay_s: float) -> None:
        self._folder, self._handle, self._locks, self._delay_s = folder, handle, locks, delay_s
        self._paths, self._numbers = {ROOT: "."}, {".": ROOT}

    def serve(self) -> None:
        """Until it is unmounted."""
        while True:
            try:
                call = os.read(self._handle, LONGEST + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue  # a call that was taken back
            _, code, unique, node, *_ = HEADER.unpack_from(call)
            if code not in SILENT:
                self._answer(unique, *self._result(code, node, call[HEADER.size :]))

    def _answer(self, unique: int, error: int, body: bytes) -> None:
        head = ANSWER.pack(ANSWER.size + len(body), -error, unique)
        os.write(self._handle, head + body)

    def _result(self, code: int, node: int, body: bytes) -> tuple[int, bytes]:
        name = CALLS.get(code)
        if name in WRITERS:
            time.sleep(self._delay_s)
        try:
            return (0, getattr(self, f"_{name}")(node, body)) if name else (errno.ENOSYS, b"")
        except OSError as error:
            return error.errno or errno.EIO, b""

    def _at(self, node: int, name: bytes = b"") -> Path:
        return self._folder / self._paths[node] / name.rstrip(b"\0").decode()

    def _init(self, _: int, __: bytes) -> bytes:
        flags = OPEN_TRUNCATES | BIG_WRITES | (0 if self._locks else POSIX_LOCKS | FLOCKS)
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, LONGEST, flags, 16, 12, LONGEST, 1, 32, 0, 0)

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._at(node, body))

    def _entry(self, path: Path) -> bytes:
        found = path.lstat()
        name = str(path.relative_to(self._folder))
        number = self._numbers.setdefault(name, len(self._paths) + 1)
        self._paths[number] = name
        return ENTRY.pack(number, 0, 0, 0, 0, 0) + attributes(found)

    def _getattr(self, node: int, body: bytes) -> bytes:
        flags, _, handle = struct.unpack_from("<IIQ", body)
        found = os.fstat(handle) if flags & SIZE_WANTED else self._at(node).lstat()
        return bytes(16) + attributes(found)

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, handle, size = struct.unpack_from("<IIQQ", body)
        if valid & SIZE_GIVEN:
            os.truncate(handle if valid & HANDLE_GIVEN else self._at(node), size)
        return bytes(16) + attributes(self._at(node).lstat())

    def _mkdir(self, node: int, body: bytes) -> bytes:
        self._at(node, body[8:]).mkdir()
        return self._entry(self._at(node, body[8:]))

    def _unlink(self, node: int, body: bytes) -> bytes:
        self._at(node, body).unlink()
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        self._at(node, body).rmdir()
        return b""

    def _rename(self, node: int, body: bytes, names_at: int = 8) -> bytes:
        (place,) = struct.unpack_from("<Q", body)
        old, new = body[names_at:].split(b"\0")[:2]
        before, after = self._at(node, old), self._at(place, new)
        before.replace(after)
        moved = str(before.relative_to(self._folder)), str(after.relative_to(self._folder))
        self._paths = {n: path.replace(*moved) if path == moved[0] else path
                       for n, path in self._paths.items()}  # fmt: skip
        self._numbers = {path: n for n, path in self._paths.items()}
        return b""

    def _rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        return OPENED.pack(os.open(self._at(node), flags & ~os.O_APPEND), 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        path = self._at(node, body[16:])
        handle = os.open(path, (flags & ~os.O_APPEND) | os.O_CREAT, mode)
        return self._entry(path) + OPENED.pack(handle, 0, 0)

    def _read(self, _: int, body: bytes) -> bytes:
        handle, offset, size, *_rest = READING.unpack_from(body)
        return os.pread(handle, size, offset)

    def _write(self, _: int, body: bytes) -> bytes:
        handle, offset, size, *_rest = READING.unpack_from(body)
        written = os.pwrite(handle, body[READING.size : READING.size + size], offset)
        return struct.pack("<II", written, 0)

    def _statfs(self, _: int, __: bytes) -> bytes:
        found = os.statvfs(self._folder)
        counts = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q4I24x", *counts, found.f_bsize, 255, found.f_frsize, 0)

    def _release(self, _: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _fsync(self, _: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def _nothing(self, _: int, __: bytes) -> bytes:
        return b""

    _flush = _fsyncdir = _releasedir = _access = _destroy = _nothing

    def _opendir(self, _: int, __: bytes) -> bytes:
        return OPENED.pack(0, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_rest = READING.unpack_from(body)
        listed = b""
        for place, name in list(enumerate(sorted(os.listdir(self._at(node))), 1))[offset:]:
            entry = struct.pack("<QQII", place, place, len(name.encode()), 0) + name.encode()
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed


CALLS = {
    1: "lookup", 3: "getattr", 4: "setattr", 9: "mkdir", 10: "unlink", 11: "rmdir", 12: "rename",
    14: "open", 15: "read", 16: "write", 17: "statfs", 18: "release", 20: "fsync", 25: "flush",
    26: "init", 27: "opendir", 28: "readdir", 29: "releasedir", 30: "fsyncdir", 34: "access",
    35: "create", 38: "destroy", 45: "rename2",
}  # fmt: skip


def attributes(found: os.stat_result) -> bytes:
    times = found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns
    return ATTRIBUTES.pack(
        found.st_ino, found.st_size, found.st_blocks, *(t // 10**9 for t in times),
        *(t % 10**9 for t in times), found.st_mode, found.st_nlink, found.st_uid, found.st_gid,
        0, found.st_blksize, 0,
    )  # fmt: skip


def mount(place: Path, kind: str) -> int:
    """The kernel's end of a new mount; raise OSError where this process may not."""
    handle = os.open("/dev/fuse", os.O_RDWR)
    given = f"fd={handle},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    _checked(libc().mount(b"fuse", str(place).encode(), kind.encode(), 0, given.encode()))
    return handle


def unmount(place: Path) -> None:
    """Whatever is still open there."""
    detach = 2
    _checked(libc().umount2(str(place).encode(), detach))


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(arguments: Sequence[str]) -> None:
    folder, place, *options = arguments
    named = dict(option.split("=") for option in options if "=" in option)
    handle = mount(Path(place), named.get("kind", "fuse"))
    print("mounted", flush=True)
    Mounted(Path(folder), handle, "no-locks" not in options, float(named.get("delay", 0))).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
