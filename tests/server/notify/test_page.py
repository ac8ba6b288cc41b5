"""Who is paged, and who is only told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from spikeguard_core.notification.topics import Topic, Urgency
from spikeguard_core.policy.finding import FirstMove
from spikeguard_protocol import Kind, Outcome
from spikeguard_server.notify.message import ChannelMessage, SpikeNews, Waiting, brief, title_of

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


@pytest.mark.parametrize(
    ("came_back", "said"),
    [(True, "came back after a command"), (False, "stayed after a command")],
)
def test_a_title_says_that_a_command_did_not_hold_where_it_asks_for_the_next(
    came_back: bool, said: str
) -> None:
    seen = spike(recurrences=1, came_back=came_back, decided="applied: roll back")
    alone = frozenset({Topic.RECURRED})
    assert title_of(alone, "gpt", "live", seen, "p") == f"gpt#1: divergent spike {said}"
    renamed = replace(seen, heading="recoverable spike", decided=None)
    title = title_of(frozenset({Topic.RENAMED}), "gpt", "live", renamed, "p")
    assert title == f"gpt#1: recoverable spike {said}"
    waiting = Waiting(
        "gpt#1.2", 1, "go back to step 200", "go back", ("why",), 50, "50 steps", 600.0, 600.0
    )
    asked = frozenset({Topic.APPLIED, Topic.RECURRED, Topic.PROPOSED})
    title = title_of(asked, "gpt", "live", replace(seen, waiting=waiting), "p")
    assert title == f"gpt#1: divergent spike {said}, decide: go back"


@pytest.mark.parametrize(("sure", "urgency"), [(False, Urgency.WARNING), (True, Urgency.URGENT)])
def test_a_divergence_below_the_confidence_to_act_at_pages_nobody(
    sure: bool, urgency: Urgency
) -> None:
    told = ChannelMessage(
        "k", 1, frozenset({Topic.OPENED}), "p", "gpt", "live", "t", AT, spike(sure=sure)
    )
    assert told.urgency is urgency


def test_of_an_incident_that_is_over_the_verdict_says_how_it_ended() -> None:
    over = spike(state="closed", outcome=Outcome.RECOVERED, reason="loss is on trend")
    assert brief(over)[1] == "Recovered: loss is on trend."
    assert brief(spike())[1] == "Divergent (50%): finite again."
