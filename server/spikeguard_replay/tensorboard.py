"""Scalars out of TensorBoard event files, by TensorBoard's own reader (the extra `tensorboard`).

A record whose checksum is wrong is refused with its place. A last record that is cut off, as a run
that still writes or was killed leaves it, is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.extras import install_command
from spikeguard_replay.points import LogPoint

MARK: Final = "tfevents"  # every event file's name holds it
REMEDY: Final = "the file is damaged or no TensorBoard event file; copy it again, or leave it out"


def event_points(path: Path) -> Iterator[LogPoint]:
    """Every scalar of an event file, in its order; raises `CommandFailed`."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.tensorflow_stub import errors
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    except ImportError:
        raise CommandFailed(
            f"{path}: TensorBoard reads its own files: {install_command('tensorboard')}"
        ) from None
    reader = PyRecordReader_New(str(path))
    for number in count(1):
        try:
            reader.GetNext()
            event = Event.FromString(reader.record())
            points = [(one.tag, value) for one in event.summary.value
                      if one.tag and (value := _number(one)) is not None]  # fmt: skip
        except errors.OutOfRangeError:
            return
        except (DecodeError, errors.DataLossError, ValueError, TypeError, KeyError, OverflowError,
                MemoryError) as error:  # fmt: skip
            if "truncated" in str(error):
                return
            raise CommandFailed(f"{path}, record {number}: {error}: {REMEDY}") from None
        yield from (LogPoint(event.step, tag, value) for tag, value in points)


def _number(value: Any) -> float | None:
    """What an old event holds as `simple_value` and a new one as a tensor without dimensions."""
    from tensorboard.util.tensor_util import make_ndarray

    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.tensor.tensor_shape.dim:
        return None
    array = make_ndarray(value.tensor)
    return float(array) if array.dtype.kind == "f" and array.shape == () else None
