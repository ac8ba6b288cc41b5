"""From the outbox to conversations: which channels of the project ask for what happened.

One run a transaction; a notice leaves the outbox in the transaction that makes it somebody's. Where
nobody is told, the log says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.notification.channel import Channel
from spikeguard_core.notification.delivery import Result, uninterested
from spikeguard_core.notification.topics import OF_BEGUN, Topic
from spikeguard_protocol import Verb
from spikeguard_server.store.channels import channels_of
from spikeguard_server.store.conversations import Entry, Key, add_topics, going_on, log
from spikeguard_server.store.notices import Notice, take_notices
from spikeguard_server.store.reads.notices import NotifiedRun, read_told

NO_CHANNEL = "the project has no channel"
_TAKES_BACK = frozenset({Topic.BACK, Topic.ENDED})  # that the run is silent
ONLY_A_LOOK = "watching asks nothing of anybody"


def dispatch(connection: sql.Connection, run_id: UUID) -> int:
    """Hand what waits of the run to the channels that ask for it; how many notices there were."""
    notices = take_notices(connection, run_id)
    if not notices:
        return 0
    told = read_told(connection, run_id)
    channels = [channel for channel, _ in channels_of(connection, told.project)]
    begun = going_on(connection, run_id)
    entries: list[Entry] = []
    for number in sorted({notice.incident or 0 for notice in notices}):
        mine = [notice for notice in notices if (notice.incident or 0) == number]
        topics = frozenset(notice.topic for notice in mine if not _only_a_look(notice))
        looks = frozenset(notice.topic for notice in mine if _only_a_look(notice)) - topics
        dropped = partial(Entry, run_id, told.project, number)
        if looks:
            entries.append(dropped(None, looks, Result.DROPPED, ONLY_A_LOOK))
        if _to_tell(topics, begun=False) and not channels:
            entries.append(dropped(None, topics, Result.DROPPED, NO_CHANNEL))
        for channel in channels:
            key = Key(run_id, number, channel.name)
            offered = _to_tell(topics, key in begun)
            refused = _offer(connection, key, told, channel, offered, begun.get(key, False))
            entries += [
                dropped(channel.name, frozenset(some), Result.DROPPED, reason)
                for reason, some in refused.items()
            ]
    log(connection, entries)
    return len(notices)


def _only_a_look(notice: Notice) -> bool:
    return notice.verb == Verb.WATCH.value


def _to_tell(topics: frozenset[Topic], begun: bool) -> frozenset[Topic]:
    """Without the end of a silence that nobody heard of: most runs simply finish."""
    return topics if begun or Topic.SILENT in topics else topics - _TAKES_BACK


def _offer(
    connection: sql.Connection,
    key: Key,
    told: NotifiedRun,
    channel: Channel,
    topics: frozenset[Topic],
    told_before: bool,
) -> Mapping[str, set[Topic]]:
    """Add what the channel asks for to its conversation; by reason, what it does not ask for."""
    reasons = {topic: uninterested(channel, topic, told.name) for topic in topics}
    if told_before and channel.enabled:  # an alert that was raised is answered there
        reasons |= dict.fromkeys(topics & OF_BEGUN, None)
    wanted, refused = list[Topic](), dict[str, set[Topic]]()
    for topic, reason in reasons.items():
        if reason is None:
            wanted.append(topic)
        else:
            refused.setdefault(reason, set()).add(topic)
    if wanted:
        add_topics(connection, key, told.project, wanted)
    return refused
