"""Scalars out of TensorBoard event files, by TensorBoard's own reader (the extra `tensorboard`).

A record whose checksum is wrong is refused with its place. A last record that is cut off, as a run
that still writes or was killed leaves it, is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.extras import install_command
from spikeguard_replay.points import LogPoint

MARK: Final = "tfevents"  # every event file's name holds it
_BENT: Final = (ValueError, TypeError, KeyError, OverflowError, MemoryError)  # its reader's, too
REMEDY: Final = "the file is damaged or no TensorBoard event file; copy it again, or leave it out"


def event_points(path: Path) -> Iterator[LogPoint]:
    """Every scalar of an event file, in its order; raises `CommandFailed`."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise CommandFailed(
            f"{path}: TensorBoard reads its own files: {install_command('tensorboard')}"
        ) from None
    for number, record in _records(path):
        try:
            yield from _scalars(Event.FromString(record), make_ndarray)
        except (DecodeError, *_BENT) as error:
            raise CommandFailed(f"{path}, record {number}: {error}: {REMEDY}") from None


def _records(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number, from 1 on, and bytes of every whole record."""
    from tensorboard.compat.tensorflow_stub import errors
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    reader = PyRecordReader_New(str(path))
    for number in count(1):
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return
        except errors.DataLossError as error:  # two things in one, told apart by their words
            if "truncated" in str(error):
                return
            raise CommandFailed(
                f"{path}, record {number}: the checksum is wrong: {REMEDY}"
            ) from None
        except _BENT:
            raise CommandFailed(f"{path}, record {number}: no length: {REMEDY}") from None
        yield number, reader.record()


def _scalars(event: Any, as_array: Callable[[Any], Any]) -> Iterator[LogPoint]:
    for value in event.summary.value:
        number = _number(value, as_array)
        if value.tag and number is not None:
            yield LogPoint(event.step, value.tag, number)


def _number(value: Any, as_array: Callable[[Any], Any]) -> float | None:
    """What an old event holds as `simple_value` and a new one as a tensor without dimensions."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.tensor.tensor_shape.dim:
        return None
    array = as_array(value.tensor)
    return float(array) if array.dtype.kind == "f" and array.shape == () else None
