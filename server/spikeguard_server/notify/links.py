"""The link in a message with which whoever reads it may decide.

Law: only where the operator set a key and the channel asks for links; made anew for every message,
good once, for the revision that the message tells, no longer than that waits.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import sqlalchemy as sql

from spikeguard_core.notification.channel import Channel
from spikeguard_protocol import CommandId
from spikeguard_server.access.approval_links import ApprovalLink, write_link
from spikeguard_server.notify.facts import Facts
from spikeguard_server.settings import Settings
from spikeguard_server.store.conversations import Conversation
from spikeguard_server.store.links import make_link

LABEL = "Decide without signing in"


def with_link(
    connection: sql.Connection,
    facts: Facts,
    held: Conversation,
    channel: Channel,
    settings: Settings,
) -> Facts:
    """`facts` with an approval link, where one may be sent."""
    waiting = facts.spike.waiting if facts.spike is not None else None
    if waiting is None or not channel.links or not settings.link_key:
        return facts
    command = CommandId.parse(waiting.command)
    expires_at = facts.now + timedelta(seconds=waiting.expires_in_s)
    id = make_link(
        connection, held.key.run_id, incident=held.key.incident, command=command.number,
        revision=waiting.revision, channel=channel.name, person=channel.person,
        expires_at=expires_at,
    )  # fmt: skip
    link = ApprovalLink(
        id, facts.told.project, facts.told.name, held.key.incident, command.number,
        waiting.revision, int(expires_at.timestamp()),
    )  # fmt: skip
    address = f"{settings.public_url.rstrip('/')}/approve/{write_link(link, settings.link_key)}"
    return replace(facts, links={LABEL: address, **facts.links})
