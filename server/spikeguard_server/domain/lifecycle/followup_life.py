"""The states of a follow-up, and how it survives when its post-mortem is written again.

Invariants: every move stands in `FOLLOWUP_MOVES`. A post-mortem that is written again never takes
back what people did: their words, owners and states stay, and what they touched stays too where the
facts no longer ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spikeguard_protocol import FollowupState
from spikeguard_server.domain.lifecycle.moves import IllegalMove


class FollowupEvent(StrEnum):
    """What people can do with it."""

    FINISH = "finish"
    DROP = "drop"
    REOPEN = "reopen"


FOLLOWUP_MOVES: Final[Mapping[tuple[FollowupState, FollowupEvent], FollowupState]] = {
    (FollowupState.OPEN, FollowupEvent.FINISH): FollowupState.DONE,
    (FollowupState.OPEN, FollowupEvent.DROP): FollowupState.DROPPED,
    (FollowupState.DONE, FollowupEvent.REOPEN): FollowupState.OPEN,
    (FollowupState.DROPPED, FollowupEvent.REOPEN): FollowupState.OPEN,
}
LEADS_TO: Final[Mapping[FollowupState, FollowupEvent]] = {
    FollowupState.OPEN: FollowupEvent.REOPEN,
    FollowupState.DONE: FollowupEvent.FINISH,
    FollowupState.DROPPED: FollowupEvent.DROP,
}


def moved(state: FollowupState, to: FollowupState) -> FollowupState:
    """`to`, where it can be reached from `state`; raise `IllegalMove` otherwise."""
    if state is to:
        return to
    event = LEADS_TO[to]
    try:
        return FOLLOWUP_MOVES[state, event]
    except KeyError:
        legal = [word for (start, word) in FOLLOWUP_MOVES if start is state]
        raise IllegalMove("follow-up", state, event, legal) from None


@dataclass(frozen=True, slots=True)
class ProposedFollowup:
    """What the facts of an incident ask for; `rule` names it each time it is asked for."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A follow-up that the facts asked for, as it is stored."""

    rule: str
    text: str
    touched: bool  # people changed its words, its owner or its state


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What is to be done with the stored ones."""

    new: tuple[ProposedFollowup, ...] = ()
    reworded: tuple[ProposedFollowup, ...] = ()
    gone: tuple[str, ...] = ()  # rules whose follow-up nobody touched and nothing asks for


def reconciled(kept: Sequence[Kept], asked: Sequence[ProposedFollowup]) -> Reconciled:
    """How the stored ones become those that are asked for now."""
    known, wanted = {one.rule: one for one in kept}, {one.rule for one in asked}
    untouched = {rule: one for rule, one in known.items() if not one.touched}
    return Reconciled(
        new=tuple(one for one in asked if one.rule not in known),
        reworded=tuple(
            one for one in asked if one.rule in untouched and untouched[one.rule].text != one.text
        ),
        gone=tuple(rule for rule in untouched if rule not in wanted),
    )
