"""From rows to a message and its picture: the run or the incident at the moment of sending.

Reads only, in one transaction; a message that waited tells the present, not what was so when it was
put into the outbox. The picture is drawn from the copy that is kept with the incident, thinned, so
that an incident of a million steps costs what one of a thousand does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import WAITING
from spikeguard_core.notification.channel import Channel
from spikeguard_core.notification.topics import Topic
from spikeguard_core.policy.cost import can_wait_s, cost_of
from spikeguard_core.policy.remedies import ACTING
from spikeguard_core.policy.targeting import left_if_job_dies
from spikeguard_protocol import (
    CommandState,
    IncidentId,
    Outcome,
    RunId,
    SegmentId,
    SegmentReason,
    Signal,
    Verb,
)
from spikeguard_protocol.paths import confirm_path, incident_page_path
from spikeguard_protocol.vocabulary import SPEAKS_OF
from spikeguard_server.entities import IncidentRow
from spikeguard_server.jobs.postmortems import postmortem_facts
from spikeguard_server.notify.message import ChannelMessage, SpikeNews
from spikeguard_server.report.facts import NORMS, IncidentPicture, RecordedCurve
from spikeguard_server.report.figures import lost_words
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import commands_of, commands_waiting, own_rule_acts
from spikeguard_server.store.conversations import Conversation, lost_channels
from spikeguard_server.store.incidents import attempts_by_number, read_incident
from spikeguard_server.store.reads.runs import MAX_SEGMENTS, NotifiedRun
from spikeguard_server.store.reads.series import Window, read_series
from spikeguard_server.store.runs import current_line, run_row, segments_of
from spikeguard_server.store.situations import read_pace
from spikeguard_server.store.tokens import make_link

LABEL = "Decide without signing in"
POINTS: Final = 1200  # of all segments together
_log = logging.getLogger(__name__)
_SHOWN: Final = tuple(  # the loss, and what a cause may speak of: the picture chooses one
    dict.fromkeys([Signal.LOSS.value, *NORMS, *chain.from_iterable(SPEAKS_OF.values())])
)


def read_message(
    connection: sql.Connection,
    held: Conversation,
    told: NotifiedRun,
    settings: Settings,
    now: datetime,
) -> ChannelMessage:
    """What the topics of a conversation say now, `told` being its run."""
    key = held.key
    run, spike, number = RunId(told.project, told.name), None, key.incident
    if number:
        row = read_incident(connection, IncidentId(run, number))
        concerns = row.incident.outcome in (None, Outcome.RUN_ENDED)
        spike = read_spike(connection, row, job=told.job if concerns else None)
    lost = lost_channels(connection, key.run_id, number)
    return ChannelMessage(
        key=f"spikeguard/{told.project}/{told.name}#{number}",
        sequence=held.told + 1,
        topics=held.pending,
        told=told,
        at=now,
        spike=spike,
        links=_links(settings, run, number or told.open_incident, spike),
        lost=tuple(name for name in lost if name != key.channel),
    )


def read_spike(
    connection: sql.Connection, row: IncidentRow, *, job: str | None = None
) -> SpikeNews:
    """An incident, what was ordered of it, and what it costs."""
    incident, pace = row.incident, read_pace(connection, row)
    waiting = commands_waiting(connection, [row.key]).get(row.key)
    asked = commands_of(connection, *row.key)
    cost, can_wait = None, 0.0
    if waiting is not None:
        cost = cost_of(waiting.action, pace.situation, pace.policy)
        can_wait = can_wait_s(waiting.expires_in_s, waiting.expires_at_step, pace.situation)
    untold = {*WAITING, CommandState.SUPERSEDED}  # the latter stands in what replaced it
    decided = (
        one for one in reversed(asked) if one.state not in untold and one.verb is not Verb.WATCH
    )
    run, lost = run_row(connection, row.run_id), ""
    if row.closed_at is not None and run is not None:
        lost = lost_words(postmortem_facts(connection, run, row.number, row.closed_at))
    return SpikeNews(
        row=row,
        waiting=waiting,
        cost=cost,
        can_wait_s=can_wait,
        newest=next(decided, None),
        escalations=max((one.escalation for one in asked), default=0),
        sure=incident.confidence >= pace.policy.act_confidence,
        currency=pace.policy.currency,
        job=job,
        lost=lost,
        own_acts=own_rule_acts(connection, row.run_id, incident.onset_step, row.closed_at),
        if_job_dies=left_if_job_dies(pace.situation.targets, incident)
        if incident.outcome is None and incident.kind in ACTING and pace.situation.trains
        else "",
    )


def _links(
    settings: Settings, run: RunId, incident: int | None, spike: SpikeNews | None
) -> dict[str, str]:
    public, dashboard = settings.public_url.rstrip("/"), settings.dashboard_url.rstrip("/")
    which, found = quote(f"{run.project}/{run.name}", safe=""), {}
    if spike is not None and spike.waiting is not None:
        found["Decide"] = public + confirm_path(spike.waiting.id)
    if incident is not None:
        found["Open"] = public + incident_page_path(IncidentId(run, incident))
    if dashboard and spike is not None:
        found["Curves"] = f"{dashboard}/incident?run={which}&number={incident}"
    elif dashboard:
        found["Run"] = f"{dashboard}/run?run={which}"
    return found


def approval_link(
    connection: sql.Connection, message: ChannelMessage, channel: Channel, settings: Settings
) -> dict[str, str]:
    """The link with which whoever reads the message may decide, by its label; empty where none may
    be sent: only where the channel asks for links. It is made anew for every message, good once,
    for the revision that the message tells, while that waits."""
    row = message.spike.waiting if message.spike is not None else None
    if row is None or not channel.links:
        return {}
    expires_at = message.at + timedelta(seconds=max(0.0, row.expires_in_s))
    link = make_link(connection, row, channel, expires_at)
    return {LABEL: f"{settings.public_url.rstrip('/')}/approve/{link}"}


def test_message(project: str, now: datetime, who: str) -> ChannelMessage:
    """What the test button sends in the name of `who`."""
    return ChannelMessage(
        key=f"spikeguard/{project}/test/{now.timestamp():.6f}",
        sequence=1,
        topics=frozenset({Topic.TEST}),
        told=NotifiedRun(project, "test", "live", False, None, 0.0, None, None, None, False),
        at=now,
        by=who,
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
