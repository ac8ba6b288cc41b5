"""Who is paged, and who is only told."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spikeguard_protocol import Kind
from spikeguard_server.domain.symptom import FirstMove
from spikeguard_server.domain.topics import Topic, Urgency
from spikeguard_server.notify.message import Message, Spike

AT = datetime(2026, 3, 14, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(("sure", "urgency"), [(False, Urgency.WARNING), (True, Urgency.URGENT)])
def test_a_divergence_below_the_confidence_to_act_at_pages_nobody(
    sure: bool, urgency: Urgency
) -> None:
    spike = Spike(
        id="gpt#1", kind=Kind.DIVERGENT, confidence=0.5, reason="finite again", state="open",
        outcome=None, heading="divergent spike", summary="The loss rose",
        first=FirstMove("grad_norm", 250), onset_step=250, peak_step=250, pre_loss=2.1,
        peak_loss=2.1, excess=0.0, newest_step=290, recurrences=0, opened_at=AT, closed_at=None,
        sure=sure,
    )  # fmt: skip
    told = Message("k", 1, frozenset({Topic.OPENED}), "p", "gpt", "live", "t", AT, spike)
    assert told.urgency is urgency
