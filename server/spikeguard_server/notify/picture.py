"""The picture of an incident as it stands, for a message and for the pages that decide.

Nothing is written. What it shows is read from the copy that is kept with the incident, thinned, so
that an incident of a million steps costs what one of a thousand does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_protocol import SegmentId, SegmentReason, Signal
from spikeguard_protocol.vocabulary import SPEAKS_OF
from spikeguard_server.entities import IncidentRow
from spikeguard_server.report.facts import NORMS, IncidentPicture, RecordedCurve
from spikeguard_server.store.commands import commands_of
from spikeguard_server.store.incidents import attempts_by_number
from spikeguard_server.store.reads.runs import MAX_SEGMENTS
from spikeguard_server.store.reads.series import Window, read_series
from spikeguard_server.store.runs import current_line, run_row, segments_of

POINTS: Final = 1200  # of all segments together
_log = logging.getLogger(__name__)
_SHOWN: Final = tuple(  # the loss, and what a cause may speak of: the picture chooses one
    dict.fromkeys([Signal.LOSS.value, *NORMS, *chain.from_iterable(SPEAKS_OF.values())])
)


def incident_image(picture: IncidentPicture | None, *, png: bool = False) -> bytes:
    """The image for a page, or as PNG for a mail; empty where nothing was measured, or it cannot be
    drawn, whatever a job sent: one is told, and decides, without a picture too."""
    if picture is None or not any(curve.steps for curve in picture.curves):
        return b""
    from spikeguard_server.report import plots  # 0.7 s at every start

    try:
        if png:
            return plots.png_of(picture, plots.PHONE)
        return plots.svg_of(picture, plots.PHONE).encode()
    except Exception:
        _log.exception("the picture of %s cannot be drawn", picture.id)
        return b""


def picture_of(connection: sql.Connection, row: IncidentRow) -> IncidentPicture:
    """What the picture of an incident shows now."""
    run_id = row.run_id
    segments = segments_of(connection, run_id, newest=MAX_SEGMENTS)
    line = current_line(run_row(connection, run_id), segments)
    series = read_series(connection, run_id, Window(_SHOWN, points=POINTS), row.number)
    numbers = attempts_by_number(connection, run_id).numbers
    curves = [_curve(each, numbers, line.last_steps) for each in series["segments"]]
    curves.sort(key=lambda curve: (curve.attempt_number, curve.segment.number))
    return IncidentPicture(
        run=row.run,
        incident=row.incident,
        curves=tuple(curves),
        commands=tuple(commands_of(connection, *row.key)),
    )


def _curve(
    shown: Mapping[str, Any], numbers: Mapping[str, int], last_steps: Mapping[SegmentId, int | None]
) -> RecordedCurve:
    segment = SegmentId(shown["attempt"], shown["number"])
    steps = tuple(shown["steps"])
    kept_to = last_steps.get(segment, steps[0] - 1)
    return RecordedCurve(
        segment=segment,
        attempt_number=numbers[segment.attempt],
        reason=SegmentReason.START,
        steps=steps,
        values={name: tuple(column) for name, column in shown["values"].items()},
        kept_to=None if kept_to is None or kept_to >= steps[-1] else kept_to,
    )
