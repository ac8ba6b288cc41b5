"""Follow-ups: their moves, and what a post-mortem that is written anew leaves alone."""

from __future__ import annotations

from itertools import product

import pytest

from spikeguard_protocol import FollowupState
from spikeguard_server.domain.lifecycle.followup_life import (
    Kept,
    ProposedFollowup,
    moved,
    reconciled,
)
from spikeguard_server.domain.lifecycle.moves import IllegalMove

LEGAL = {("open", "done"), ("open", "dropped"), ("done", "open"), ("dropped", "open")}


@pytest.mark.parametrize(("start", "to"), list(product(FollowupState, FollowupState)))
def test_a_follow_up_moves_as_the_table_says(start: FollowupState, to: FollowupState) -> None:
    if start is to or (start.value, to.value) in LEGAL:
        assert moved(start, to) is to
    else:
        with pytest.raises(IllegalMove):
            moved(start, to)


def test_what_people_touched_stays_and_the_rest_follows_the_facts() -> None:
    kept = [
        Kept("cause-1", "as asked", touched=False),
        Kept("data-1", "in their words", touched=True),
        Kept("level-1", "0.31 nats above", touched=False),
        Kept("undone-1", "gone", touched=False),
        Kept("died-1", "gone, but taken", touched=True),
    ]
    asked = [
        ProposedFollowup("cause-1", "as asked"),
        ProposedFollowup("data-1", "as asked"),
        ProposedFollowup("level-1", "0.29 nats"),
        ProposedFollowup("targets-1", "new"),
    ]
    plan = reconciled(kept, asked)
    assert plan.new == (ProposedFollowup("targets-1", "new"),)
    assert plan.reworded == (ProposedFollowup("level-1", "0.29 nats"),)
    assert plan.gone == ("undone-1",)
    assert (
        reconciled([Kept(one.rule, one.text, touched=False) for one in asked], asked)
        == type(plan)()
    )
