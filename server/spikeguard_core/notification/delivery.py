"""Whether a message to a channel is sent now, held or dropped, always with the reason.

Silence and quiet hours delay, they lose nothing: what is still true when they end is told then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from spikeguard_core.notification.channel import Channel
from spikeguard_core.notification.topics import ABOUT, LAST, OF_BEGUN, PRESSING, REPEATING, Topic
from spikeguard_protocol import Kind, Outcome

HARMLESS = frozenset({Outcome.HEALED, Outcome.OUTLIER, Outcome.WITHDRAWN})


class Result(StrEnum):
    """What became of a message."""

    SENT = "sent"
    HELD = "held"  # it waits, for the reason given
    DROPPED = "dropped"  # it was not to be told
    FAILED = "failed"  # it is tried again
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class DeliveryVerdict:
    """What becomes of a message: sent, held for `wait_s`, or dropped."""

    act: Result
    reason: str = ""
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Subject:
    """What a message would be about, as it stands now. `kind` is None for the run itself."""

    kind: Kind | None
    outcome: Outcome | None
    escalations: int
    history: bool  # seen in data that is too old to page anybody
    acknowledged_by: str | None = None  # who looks at it


_SEND = DeliveryVerdict(Result.SENT)
_AT_ONCE = frozenset({Topic.ESCALATED, Topic.BACK, Topic.ENDED})
BURST_S = 10.0  # what happens within so many seconds of a message is told together in the next


def uninterested(channel: Channel, topic: Topic, run: str, *, begun: bool) -> str | None:
    """Why `channel` never asked for this; None if it did. `begun`: it was told of this incident
    before, and is told how it goes on."""
    if not channel.enabled:
        return "the channel is switched off"
    if topic is Topic.UNDELIVERED or (begun and topic in OF_BEGUN):
        return None  # the former stands in for another one, whatever it asks for itself
    if ABOUT[topic] not in channel.about:
        return f"the channel does not ask for {ABOUT[topic]}: {topic}"
    if not _asks_for(channel, run):
        return f"the channel does not ask for run {run}"
    return None


def stand_in(channels: Sequence[Channel], lost: Collection[str], run: str) -> Channel | None:
    """The channel that is told where those of `lost` did not get their message: one that asks for
    the run before one that does not, then the one that is told earliest. None: there is none."""
    left = [one for one in channels if one.enabled and one.name not in lost]
    return min(left, key=lambda one: (not _asks_for(one, run), one.level, one.name), default=None)


def _asks_for(channel: Channel, run: str) -> bool:
    return not channel.runs or any(fnmatchcase(run, name) for name in channel.runs)


def delivery_verdict(
    channel: Channel,
    topics: frozenset[Topic],
    subject: Subject,
    said_s_ago: float | None,
    *,
    silence: DeliveryVerdict | None = None,
    quiet: DeliveryVerdict | None = None,
) -> DeliveryVerdict:
    """What to do with a message to `channel` about `topics` of `subject`, which it asked for.

    `said_s_ago`: when the channel was last told of it; None: never. `silence` holds it by
    somebody's wish, `quiet` by the policy's quiet hours; neither keeps an alert standing that is
    over.
    """
    diverges = {Topic.RENAMED} if subject.kind is Kind.DIVERGENT else set[Topic]()
    if (by := subject.acknowledged_by) is not None and topics <= REPEATING - diverges:
        return DeliveryVerdict(Result.DROPPED, f"acknowledged by {by}, who need not be told again")
    taken_down = said_s_ago is not None and bool(topics & LAST)
    if said_s_ago is None and (reason := _needless(channel, topics, subject)):
        return DeliveryVerdict(Result.DROPPED, reason)
    held = silence or quiet
    return held if held and not taken_down else _paced(channel, topics, said_s_ago)


def _needless(channel: Channel, topics: frozenset[Topic], subject: Subject) -> str | None:
    """Why a conversation does not even begin."""
    if subject.history:
        return "it was seen in data that is too old to call anybody"
    if subject.outcome in HARMLESS:
        return f"it had ended as {subject.outcome} before anybody was told"
    if topics <= {Topic.BACK, Topic.ENDED, Topic.ACKNOWLEDGED}:
        return "nobody was told that anything was wrong"
    if Topic.UNDELIVERED in topics:
        return None
    if subject.kind is not None and subject.kind not in channel.kinds:
        return f"the channel does not ask for {subject.kind} incidents"
    if subject.escalations < channel.level:
        return f"the channel is told from escalation {channel.level} on"
    return None


def _paced(channel: Channel, topics: frozenset[Topic], said_s_ago: float | None) -> DeliveryVerdict:
    """One message an incident at a time; one that asks something or ends it waits but shortly."""
    if said_s_ago is None or topics & _AT_ONCE:
        return _SEND
    presses = bool(topics & (PRESSING | OF_BEGUN))
    wait = min(BURST_S, channel.cooldown_s) if presses else channel.cooldown_s
    left = wait - said_s_ago
    if left <= 0:
        return _SEND
    why = "one message was just sent" if presses else "cooldown"
    return DeliveryVerdict(Result.HELD, f"{why}: {wait:.0f} s between two of one incident", left)


def backoff_s(failures: int, asked_s: float | None = None) -> float:
    """Seconds until the next try after so many failures in a row; at least what was asked for."""
    return max(asked_s or 0.0, min(5.0 * 2.0 ** min(failures - 1, 8), 900.0))


GIVE_UP_AFTER = 12  # failures in a row: over an hour
