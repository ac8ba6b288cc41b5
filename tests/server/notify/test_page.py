"""Who is paged, and who is only told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from spikeguard_core.notification.topics import Topic, Urgency
from spikeguard_core.policy.finding import FirstMove
from spikeguard_protocol import Kind
from spikeguard_server.notify.message import ChannelMessage, SpikeNews

AT = datetime(2026, 3, 14, 3, 0, tzinfo=UTC)


def spike(**changes: Any) -> SpikeNews:
    known = SpikeNews(
        id="gpt#1", kind=Kind.DIVERGENT, confidence=0.5, reason="finite again", state="open",
        outcome=None, heading="divergent spike", summary="The loss rose",
        first=FirstMove("grad_norm", 250), onset_step=250, peak_step=250, pre_loss=2.1,
        peak_loss=2.1, height="0 above trend", newest_step=290, recurrences=0, opened_at=AT,
        closed_at=None,
    )  # fmt: skip
    return replace(known, **changes)


@pytest.mark.parametrize(("sure", "urgency"), [(False, Urgency.WARNING), (True, Urgency.URGENT)])
def test_a_divergence_below_the_confidence_to_act_at_pages_nobody(
    sure: bool, urgency: Urgency
) -> None:
    told = ChannelMessage(
        "k", 1, frozenset({Topic.OPENED}), "p", "gpt", "live", "t", AT, spike(sure=sure)
    )
    assert told.urgency is urgency
