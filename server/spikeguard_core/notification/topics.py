"""What people are notified of, and how urgent each topic is. A change of state that stands in
no row here is recorded and tells nobody."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from spikeguard_protocol import Kind


class Topic(StrEnum):
    """What happened."""

    OPENED = "opened"  # a spike was seen
    RENAMED = "renamed"  # it is held to be of another kind now
    RECURRED = "recurred"  # it came back after a rollback
    PROPOSED = "proposed"  # a command waits for somebody's decision
    REVISED = "revised"  # what is proposed changed
    ESCALATED = "escalated"  # nobody answered in time
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"  # nobody answered, or the job did not fetch what was approved
    WITHDRAWN = "withdrawn"  # what was proposed is no longer: healed, without reason, too late
    APPLIED = "applied"  # the run did it
    REFUSED = "refused"  # the run would not
    FAILED = "failed"  # the run tried and could not
    UNKNOWN = "unknown"  # the attempt ended without a result
    ACKNOWLEDGED = "acknowledged"  # somebody looks at it
    CLOSED = "closed"
    SILENT = "silent"  # the run sends nothing
    BACK = "back"  # and does again
    ENDED = "ended"  # or never will
    UNDELIVERED = "undelivered"  # another channel did not get its message
    TEST = "test"  # somebody pressed the button


class About(StrEnum):
    """What a channel may ask to be told about."""

    SPIKES = "spikes"  # an incident opens, is named anew, comes back, is acknowledged, closes
    DECISIONS = "decisions"  # somebody has to decide
    RESULTS = "results"  # what became of what was proposed
    RUNS = "runs"  # a run sends nothing, sends again, is over


class Urgency(StrEnum):
    """What a message asks of whoever gets it."""

    INFO = "info"
    WARNING = "warning"
    URGENT = "urgent"  # a decision, or a look at a run that is being lost


_OF_INCIDENT: Mapping[str, Topic] = {
    "open": Topic.OPENED,
    "revise": Topic.RENAMED,
    "recur": Topic.RECURRED,
    "acknowledge": Topic.ACKNOWLEDGED,
    "close": Topic.CLOSED,
}
_OF_COMMAND: Mapping[str, Topic] = {
    "propose": Topic.PROPOSED,
    "revise": Topic.REVISED,
    "escalate": Topic.ESCALATED,
    "approve": Topic.APPROVED,
    "reject": Topic.REJECTED,
    "expire": Topic.EXPIRED,
    **dict.fromkeys(("heal", "withdraw", "end_run", "restart", "halt"), Topic.WITHDRAWN),
    "apply": Topic.APPLIED,
    "refuse": Topic.REFUSED,
    "fail": Topic.FAILED,
    "lose": Topic.UNKNOWN,
}
_OF_RUN = {"silent": Topic.SILENT, "live": Topic.BACK, "ended": Topic.ENDED}

ASKING = frozenset({Topic.PROPOSED, Topic.REVISED, Topic.ESCALATED})  # somebody has to decide
# Not told while somebody has acknowledged the incident.
REPEATING = frozenset({Topic.RENAMED, Topic.REVISED, Topic.ESCALATED})
ABOUT: Mapping[Topic, About] = {
    **dict.fromkeys(_OF_COMMAND.values(), About.RESULTS),
    **dict.fromkeys(ASKING, About.DECISIONS),
    **dict.fromkeys(_OF_INCIDENT.values(), About.SPIKES),
    **dict.fromkeys(_OF_RUN.values(), About.RUNS),
}
# Somebody has to decide, or to look: what was approved did not happen, or nobody heard of it.
URGENT = ASKING | {Topic.REFUSED, Topic.FAILED, Topic.UNKNOWN, Topic.UNDELIVERED}
PRESSING = URGENT - {Topic.REVISED} | {Topic.RECURRED}  # no cooldown
ANSWERS = frozenset({Topic.APPROVED, Topic.REJECTED})  # after which nobody is asked any more
_CALM = ANSWERS | {Topic.APPLIED, Topic.WITHDRAWN, Topic.ACKNOWLEDGED, Topic.TEST}
OF_COMMAND = frozenset(_OF_COMMAND.values())  # what was proposed, or what became of it
LAST = frozenset({Topic.CLOSED, Topic.BACK, Topic.ENDED})  # ends a conversation
OF_BEGUN = LAST | {Topic.ACKNOWLEDGED}  # told wherever the conversation began


def topic_of(action: str, incident: int | None, command: int | None) -> Topic | None:
    """What an audit entry means to people; None for what nobody is told."""
    if command is not None:
        return _OF_COMMAND.get(action)
    return (_OF_RUN if incident is None else _OF_INCIDENT).get(action)


def urgency_of(topics: frozenset[Topic], kind: Kind | None) -> Urgency:
    """How much a message about `topics` of an incident of `kind` asks: only what asks for a person
    pages one. `kind` None: about the run."""
    if topics & LAST or topics <= _CALM:
        return Urgency.INFO
    if topics & URGENT or (kind is Kind.DIVERGENT and not topics & ANSWERS):
        return Urgency.URGENT
    calm = kind is Kind.OUTLIER_BATCH or topics & ANSWERS
    return Urgency.INFO if calm else Urgency.WARNING
