"""Who is paged, and who is only told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spikeguard_core.notification.topics import Topic, Urgency
from spikeguard_protocol import Kind
from spikeguard_server.notify.message import ChannelMessage
from tests.server.notify.test_hostile_text import NOW, TOLD, spike


@pytest.mark.parametrize(("sure", "urgency"), [(False, Urgency.WARNING), (True, Urgency.URGENT)])
def test_a_divergence_below_the_confidence_to_act_at_pages_nobody(
    sure: bool, urgency: Urgency
) -> None:
    divergent = spike("finite again", kind=Kind.DIVERGENT)
    told = ChannelMessage(
        "k", 1, frozenset({Topic.OPENED}), TOLD, NOW, replace(divergent, waiting=None, sure=sure)
    )
    assert told.urgency is urgency
