"""What earlier incidents say of acting and of waiting."""

from __future__ import annotations

import pytest

from spikeguard_core.lifecycle.precedents import Precedent, tallied
from spikeguard_protocol import Outcome, Verb

ROLLBACK, STOP = Verb.ROLLBACK, Verb.STOP


def test_each_way_of_acting_is_counted_with_what_it_came_to_the_most_frequent_first() -> None:
    found = [
        Precedent(None, Outcome.HEALED),
        *[Precedent(ROLLBACK, Outcome.RECOVERED)] * 3,
        Precedent(None, Outcome.LEVEL_ACCEPTED),
        Precedent(ROLLBACK, Outcome.LEVEL_ACCEPTED),
    ]
    assert [tally.words for tally in tallied(found)] == [
        "rolled back 4 times: 3 recovered, 1 stayed at a new level",
        "waited 2 times: 1 healed, 1 stayed at a new level",
    ]


def test_of_none_nothing_is_told() -> None:
    assert tallied([]) == []


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("verb", [ROLLBACK, Verb.SKIP_BATCHES, Verb.SCALE_LR, STOP, None])
def test_every_end_of_every_way_of_acting_has_words(verb: Verb | None, outcome: Outcome) -> None:
    [tally] = tallied([Precedent(verb, outcome)])
    assert " once: 1 " in tally.words
