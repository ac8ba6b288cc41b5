"""What a guard without a server left on disk: the samples in its outbox.

`OUTBOX/ATTEMPT/NUMBER.log` holds frames (`spikeguard_protocol.frames`); the text of a sample is
written by `spikeguard.uplink.messages`: `segment,step,…`, names and values, a line each.
"""

from __future__ import annotations

import json
from pathlib import Path

from spikeguard_protocol.frames import Frame, Kind, read_frames, seed_of
from spikeguard_replay.source import check_size
from spikeguard_replay.table import Table


def segments_in(folder: Path) -> list[Path]:
    """The segments of all attempts, where `folder` is a guard's directory or an outbox."""
    return [path for outbox in ("outbox", ".") for path in folder.glob(f"{outbox}/*/[0-9]*.log")]


def guard_table(segments: list[Path]) -> Table:
    """The samples of all attempts, a row a step, in the order in which they were measured."""
    check_size("the outbox", sum(path.stat().st_size for path in segments))
    frames: list[Frame] = []
    damaged = 0
    for path in segments:
        found, lost = read_frames(path.read_bytes(), seed_of(path.parent.name))
        frames += found
        damaged += lost
    table = Table()
    for frame in sorted(frames, key=lambda one: (one.at, one.number)):
        if frame.kind is Kind.SAMPLE:
            table.add(frame.number, _row(frame.payload))
    if damaged:
        table.notes.append(f"{damaged:,} damaged bytes left out")
    return table


def _row(payload: bytes) -> dict[str, object]:
    head, names, values = payload.decode().split("\n")
    measured = zip(json.loads(f"[{names}]"), json.loads(f"[{values}]"), strict=True)
    return {"step": int(head.split(",")[1]), **dict(measured)}
