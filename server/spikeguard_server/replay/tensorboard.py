"""Scalars out of TensorBoard event files, without TensorFlow.

Law: a record whose checksum is wrong is refused with its place; a last record that is cut off is
what a run that still writes, or was killed, leaves, and is passed over. Framing: TFRecord
(tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details"); messages: event.proto,
summary.proto and tensor.proto of tensorboard/compat/proto; wire format:
protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from spikeguard_cli.command import CommandFailed
from spikeguard_server.replay.crc32c import crc32c, masked
from spikeguard_server.replay.points import LogPoint

MARK = "tfevents"  # every event file's name holds it
LARGEST = 1 << 20  # bytes of a record that is looked into: what is larger holds no scalar
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_FLOAT, _DOUBLE = 1, 2  # DataType of tensors that hold scalars
Field = tuple[int, int, int, bytes]  # number, wire type, the varint, the bytes


def event_points(path: Path, data: bytes) -> Iterator[LogPoint]:
    """Every scalar of the event file `data`, in its order; raises `CommandFailed`."""
    for at, record in _framed(path, data):
        if len(record) > LARGEST:
            continue
        try:
            yield from _scalars(record)
        except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
            raise CommandFailed(
                f"{path}, byte {at}: no TensorBoard event ({error}): "
                "copy the file again, or leave it out"
            ) from None


def _framed(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of every whole record: length, its checksum, the data, its checksum."""
    at = 0
    while at + 12 <= len(data):
        head = data[at : at + 8]
        length, check = struct.unpack_from("<QI", data, at)
        _verify(path, at, head, check)
        end = at + 12 + length
        if end + 4 > len(data):
            return
        record = data[at + 12 : end]
        if length <= LARGEST:
            _verify(path, at, record, struct.unpack_from("<I", data, end)[0])
        yield at, record
        at = end + 4


def _verify(path: Path, at: int, data: bytes, check: int) -> None:
    if masked(crc32c(data)) != check:
        raise CommandFailed(
            f"{path}, byte {at}: the checksum is wrong: the file is damaged or no TensorBoard "
            "event file; copy it again"
        )


def _scalars(record: bytes) -> Iterator[LogPoint]:
    """Event: 2 = step, 5 = summary; Summary: 1 = value, repeated."""
    step, summaries = 0, []
    for number, wire, varint, payload in _fields(record):
        if (number, wire) == (2, _VARINT):
            step = varint - (1 << 64) if varint >> 63 else varint
        elif (number, wire) == (5, _LEN):
            summaries.append(payload)
    for summary in summaries:
        for number, wire, _, payload in _fields(summary):
            if (number, wire) == (1, _LEN):
                yield from _value(step, payload)


def _value(step: int, value: bytes) -> Iterator[LogPoint]:
    """Summary.Value: 1 = tag, 2 = simple_value, 8 = tensor."""
    tag, found = "", None
    for number, wire, _, payload in _fields(value):
        if (number, wire) == (1, _LEN):
            tag = payload.decode()
        elif (number, wire) == (2, _I32):
            found = float(struct.unpack("<f", payload)[0])
        elif (number, wire) == (8, _LEN):
            found = _tensor(payload)
    if tag and found is not None:
        yield LogPoint(step, tag, found)


def _tensor(tensor: bytes) -> float | None:
    """The number of a scalar TensorProto, None for any other.

    1 = dtype, 2 = shape, 4 = tensor_content, 5 = float_val, 6 = double_val.
    """
    dtype, content, scalar = 0, b"", True
    for number, wire, varint, payload in _fields(tensor):
        if (number, wire) == (1, _VARINT):
            dtype = varint
        elif (number, wire) == (2, _LEN):
            scalar = not any(n == 2 for n, _, _, _ in _fields(payload))  # 2 = dim, repeated
        elif number in (4, 5, 6):
            content = payload
    layout = {_FLOAT: "<f", _DOUBLE: "<d"}.get(dtype)
    if layout is None or not scalar or len(content) != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, content)[0])


def _fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, wire, value, b""
            continue
        if wire == _LEN:
            length, at = _varint(message, at)
        elif wire in (_I64, _I32):
            length = 8 if wire == _I64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + length > len(message):
            raise ValueError("a field reaches past its message")
        yield number, wire, 0, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the least first; and where the next field begins."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number of more than ten bytes")
