"""A training log, whatever wrote it, packed or not, in any encoding: finds out what it is and reads
it."""

from __future__ import annotations

import io
import json
import lzma
import sys
import zipfile
import zlib
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from spikeguard_cli.command import CommandFailed
from spikeguard_protocol.encoding import SPOOLED
from spikeguard_protocol.escaping import printable
from spikeguard_replay import stores
from spikeguard_replay.choice import log_of
from spikeguard_replay.console import LineReader
from spikeguard_replay.delimited import FORMS, dialect_of, read_delimited
from spikeguard_replay.log import Log, LogOptions, Table
from spikeguard_replay.objects import (
    BEGINS,
    python_values,
    read_document,
    records_in,
    records_table,
)

TRIED: Final = 20  # newest files of a directory
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
WANDB: Final = (
    "a W&B run in its own binary format: export it as JSONL, one history row a line "
    '(json.dumps of each of wandb.Api().run("entity/project/id").scan_history()), '
    "or as CSV from the panel's menu"
)
AIM: Final = (
    "Aim's own store: export a run's metrics as CSV, "
    "aim.Repo(PATH).get_run(HASH).metrics().dataframe().to_csv(FILE)"
)


def read_log(path: Path, options: LogOptions = LogOptions()) -> Log:  # noqa: B008
    """Read a log, `-` for standard input; of a directory the newest. Raises `CommandFailed`, and
    `OSError` where there is none."""
    try:
        return _log_at(path, options)
    except CommandFailed as failed:  # it quotes names of files, columns and runs
        raise CommandFailed(printable(str(failed))) from failed


def _log_at(path: Path, options: LogOptions) -> Log:
    """The log at `path`; of a directory that is no run of a known tool the newest in it."""
    if path.suffix.lower() == ".wandb":
        raise CommandFailed(f"{path}: {WANDB}")
    if (found := _stored_at(path)) is not None:
        return log_of(str(path), *found, options)
    if not path.is_dir():
        return log_of(str(path), *_table_of(Source(path), options.run), options)
    newest = sorted(logs_under(path), key=lambda one: one.stat().st_mtime, reverse=True)
    first: CommandFailed | OSError | None = None
    for one in newest[:TRIED]:
        try:
            log = _log_at(one, options)
        except (CommandFailed, OSError) as failed:
            first = first or failed
        else:
            log.notes.insert(0, f"the newest log of {len(newest)} files in {path}")
            return log
    if path.name == ".aim" or (path / ".aim").is_dir():
        raise CommandFailed(f"{path}: {AIM}")
    why = f"; of the newest file: {first}" if first else ""
    raise CommandFailed(f"{path}: no training log among {len(newest)} files{why}")


def _stored_at(path: Path) -> tuple[str, Table] | None:
    """What a known tool stored as one run, which a path or the names of files tell."""
    if stores.is_mlflow_run(path):
        return "MLflow metrics", stores.mlflow_table(path)
    if segments := stores.segments_in(path):
        return "a guard's outbox", stores.guard_table(segments)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if events := [one for one in files if stores.MARK in one.name and one.is_file()]:
        points = chain.from_iterable(map(stores.event_points, events))
        return "TensorBoard events", stores.point_table(points)
    return None


def _table_of(source: Source, run: str | None) -> tuple[str, Table]:
    """What `source` is and what it holds, by how it begins."""
    name, path = source.name, source.path
    if source.head.startswith(stores.SQLITE_MAGIC):
        return stores.database_table(path, run)
    if source.head.startswith(SPOOLED):
        return "a guard's outbox", stores.guard_table([path])
    if (arrays := source.arrays()) is not None:
        return "NumPy", records_table(name, records_in(arrays))
    text = source.text()
    first = next((line for line in text if line.strip()), "")
    rest = text.read(HEAD)
    if first.lstrip()[:1] in ("{", "[") and _is_document(first, not rest.strip()):
        return "JSON", read_document(name, first + rest + text.read())
    if BEGINS.match(first.lstrip()):
        records = records_in(python_values(first + rest + text.read()))
        if records is not None:
            return "Python", records_table(name, records)
    text.detach()
    dialect = None if first.lstrip()[:1] == "{" else dialect_of(first + rest, len(rest) < HEAD)
    if dialect is not None:
        return FORMS[dialect.delimiter], read_delimited(name, source.text(), dialect, run)
    reader = LineReader()
    table = reader.read(source.text())
    return "JSON lines" if reader.objects > len(table) // 2 else "console output", table


def _is_document(line: str, whole: bool) -> bool:
    """Whether a text that begins with `line`, and is the `whole` of it, is one JSON value."""
    try:
        return records_in(json.loads(line)) is not None and whole
    except json.JSONDecodeError as error:  # a document goes on in the lines below
        return error.pos >= len(line.rstrip())
    except (ValueError, RecursionError):
        return False


def logs_under(folder: Path) -> list[Path]:
    """Every log under `folder`, sorted: files, and folders that are one run together.

    What begins with a dot, and MLflow's record of an experiment, is passed over.
    """
    found, folders = list[Path](), [folder]
    while folders:
        for path in folders.pop().iterdir():
            if path.name.startswith(".") or path.name == stores.RECORD:
                continue
            if path.is_file():
                found.append(path)
            elif path.is_dir() and not path.is_symlink():
                one_run = stores.is_mlflow_run(path) or stores.segments_in(path)
                (found if one_run else folders).append(path)
    return sorted(found)


class Source:
    """The bytes of one log, unpacked. `name` is what errors call it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        if path == STANDARD_INPUT:
            self._stream = self._whole(sys.stdin.buffer)
        elif path.is_file():
            self._check_size(path.stat().st_size)
            self._stream = path.open("rb")
        else:  # a pipe can be read once only
            self._stream = self._whole(path.open("rb"))
        self._begin = 0
        magic = self._from_begin().read(6)
        for module in [module for mark, module in _PACKED if magic.startswith(mark)]:
            try:
                self._stream = self._whole(import_module(module).open(self._from_begin(), "rb"))
            except ImportError:
                raise CommandFailed(
                    f"{self.name}: packed by zstd: unpack it (`zstd -d`), or pip install zstandard"
                ) from None
        # Zeros stand in front where a file was emptied while the job wrote on.
        while (head := self._from_begin().read(HEAD)).startswith(
            b"\0" if self._begin else bytes(4)
        ):
            self._begin += len(head) - len(head.lstrip(b"\0"))
        self.head = head

    def _from_begin(self) -> IO[bytes]:
        self._stream.seek(self._begin)
        return self._stream

    def _whole(self, stream: Any) -> IO[bytes]:
        """All that a stream gives, in memory: it cannot be read twice."""
        data = io.BytesIO()
        try:
            while piece := stream.read1(2**20):
                data.write(piece)
                self._check_size(data.tell())
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
        several = self.head.startswith(b"PK\x03\x04") and b".npy" in self.head[:200]
        if not several and not self.head.startswith(b"\x93NUMPY"):
            return None
        try:
            found = np.load(self._from_begin(), allow_pickle=False)
            return {name: found[name].tolist() for name in found} if several else found.tolist()
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

    def _check_size(self, size: int) -> None:
        """Raise `CommandFailed` for more bytes than a log may have."""
        if size > LARGEST:
            raise CommandFailed(
                f"{self.name}: {size:,} bytes, {LARGEST:,} at most: cut the log in parts, or thin "
                "it out"
            )
