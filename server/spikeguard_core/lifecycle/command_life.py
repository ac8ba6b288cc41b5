"""The states of a command: the one table of legal moves.

A fence (attempt, expiry) stops execution, never a late result: what was delivered can no longer
expire, it becomes `unknown`, and a result that arrives afterwards is still recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from spikeguard_protocol import CommandState, Kind, Outcome, ResultState

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class IllegalMove(ValueError):
    """A move that the table does not know. The state stays what it was."""

    def __init__(self, what: str, state: StrEnum, event: StrEnum, legal: Iterable[StrEnum]) -> None:
        words = ", ".join(legal) or "nothing: this state is final"
        super().__init__(f"a {what} that is {state} does not take {event}; it takes {words}")


class CommandEvent(StrEnum):
    """What can happen to a command."""

    REVISE = "revise"  # the policy changed its mind about the arguments: a new revision
    SUPERSEDE = "supersede"  # another command took its place
    REJECT = "reject"  # a person said no
    EXPIRE = "expire"  # its time or its steps ran out
    HEAL = "heal"  # the spike heals by itself, or did
    WITHDRAW = "withdraw"  # the policy no longer wants it, or its incident closed otherwise
    END_RUN = "end_run"  # the run was over
    RESTART = "restart"  # the attempt that it was meant for ended, or another one took over
    HALT = "halt"  # the kill switch was put on
    APPROVE = "approve"  # a person or the policy said yes
    DELIVER = "deliver"  # it went out in an acknowledgement
    REFUSE = "refuse"  # the agent checked it and would not
    APPLY = "apply"  # the agent did it
    FAIL = "fail"  # the agent tried and could not
    LOSE = "lose"  # the attempt ended without a result
    JUDGE = "judge"  # its effect on the loss was established


_RESULTS = {
    CommandEvent.REFUSE: CommandState.REFUSED,
    CommandEvent.APPLY: CommandState.APPLIED,
    CommandEvent.FAIL: CommandState.FAILED,
}

# What ends a command that nobody outside has seen, whether or not somebody said yes to it.
_TAKEN_BACK = {
    CommandEvent.SUPERSEDE: CommandState.SUPERSEDED,
    CommandEvent.REJECT: CommandState.REJECTED,
    CommandEvent.HEAL: CommandState.WITHDRAWN_HEALED,
    CommandEvent.WITHDRAW: CommandState.WITHDRAWN,
    CommandEvent.END_RUN: CommandState.RUN_ENDED,
    CommandEvent.RESTART: CommandState.VOID,
}

COMMAND_MOVES: Mapping[tuple[CommandState, CommandEvent], CommandState] = {
    (CommandState.PROPOSED, CommandEvent.REVISE): CommandState.PROPOSED,
    **{(CommandState.PROPOSED, event): state for event, state in _TAKEN_BACK.items()},
    (CommandState.PROPOSED, CommandEvent.EXPIRE): CommandState.EXPIRED,
    (CommandState.PROPOSED, CommandEvent.APPROVE): CommandState.APPROVED,
    # Approved and still here: it can be taken back, because nobody outside has seen it.
    **{(CommandState.APPROVED, event): state for event, state in _TAKEN_BACK.items()},
    (CommandState.APPROVED, CommandEvent.EXPIRE): CommandState.UNDELIVERED,
    (CommandState.APPROVED, CommandEvent.HALT): CommandState.HALTED,
    (CommandState.APPROVED, CommandEvent.DELIVER): CommandState.DELIVERED,
    # Delivered: the agent may have done it, so running out of time proves nothing.
    (CommandState.DELIVERED, CommandEvent.EXPIRE): CommandState.UNKNOWN,
    (CommandState.DELIVERED, CommandEvent.LOSE): CommandState.UNKNOWN,
    **{(CommandState.DELIVERED, event): state for event, state in _RESULTS.items()},
    **{(CommandState.UNKNOWN, event): state for event, state in _RESULTS.items()},
    (CommandState.APPLIED, CommandEvent.JUDGE): CommandState.JUDGED,
}

EVENT_OF_RESULT = {ResultState(state.value): event for event, state in _RESULTS.items()}

EVENT_OF_OUTCOME: Mapping[Outcome, CommandEvent] = {
    Outcome.HEALED: CommandEvent.HEAL,
    Outcome.OUTLIER: CommandEvent.HEAL,
    Outcome.RECOVERED: CommandEvent.WITHDRAW,
    Outcome.LEVEL_ACCEPTED: CommandEvent.WITHDRAW,
    Outcome.WITHDRAWN: CommandEvent.WITHDRAW,
    Outcome.RUN_ENDED: CommandEvent.END_RUN,
}  # what the close of an incident is to a command that still waits

WAITING = frozenset({CommandState.PROPOSED})  # for a decision
IN_FLIGHT = frozenset({CommandState.APPROVED, CommandState.DELIVERED})  # decided, no result yet
EXECUTED = frozenset({CommandState.APPLIED, CommandState.JUDGED})  # the run felt it
TAKEN_BACK = frozenset(
    {*_TAKEN_BACK.values(), CommandState.EXPIRED, CommandState.UNDELIVERED, CommandState.HALTED}
) - {CommandState.REJECTED}  # ended without a person's no and without reaching the job

# Somebody was asked and has not answered, whatever became of the question meanwhile.
UNDECIDED = frozenset(
    {*WAITING, *IN_FLIGHT, CommandState.EXPIRED, CommandState.UNDELIVERED, CommandState.HALTED}
    | {CommandState.VOID, CommandState.UNKNOWN}
)

WHY_LATE: Mapping[CommandState, str] = {
    CommandState.PROPOSED: "nobody answered in time",
    CommandState.APPROVED: "the job did not fetch it in time",
    CommandState.DELIVERED: "no result came back in time",
}  # why a command whose time ran out ended


def withdrawal(kind: Kind) -> CommandEvent:
    """What it is to a waiting command that nothing is proposed any more for a spike of `kind`."""
    healing = kind in (Kind.RECOVERABLE, Kind.OUTLIER_BATCH)
    return CommandEvent.HEAL if healing else CommandEvent.WITHDRAW


def next_state(what: str, moves: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """The state of a `what` after `event`; raise `IllegalMove` if `moves` do not know it."""
    try:
        return moves[state, event]
    except KeyError:
        legal = [other for start, other in moves if start is state]
        raise IllegalMove(what, state, event, legal) from None


def can(state: CommandState, event: CommandEvent) -> bool:
    """Whether `event` is legal in `state`."""
    return (state, event) in COMMAND_MOVES
