"""A message to a channel about an incident or a run, as it is now.

Law: pure facts and their words. A message carries no configuration, and a curve only in a mail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from spikeguard_core.notification.topics import (
    ASKING,
    LAST,
    OF_COMMAND,
    Topic,
    Urgency,
    urgency_of,
)
from spikeguard_core.policy.finding import FirstMove
from spikeguard_protocol import IncidentState, Kind, Signal
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.phrases import PARAGRAPH, sure_phrase
from spikeguard_server.report.causes import CAUSES
from spikeguard_server.report.facts import IncidentPicture
from spikeguard_server.report.wording import ENDINGS, count, duration, number, word


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is proposed, and what it would cost."""

    command: str  # public id
    revision: int
    sentence: str
    brief: str  # the same without the target's name
    reason: Sequence[str]  # its paragraphs
    cost_steps: int
    price: str  # the cost in steps, time and money
    expires_in_s: float  # by the clock alone
    can_wait_s: float  # until the earliest of its deadlines, in time and in steps
    a_minute: str | None = ""  # what each minute of waiting adds; empty = nothing; None = not known
    pace: str = ""  # how time is reckoned; empty = not known
    checks: tuple[str, ...] = ()  # to look at before approving


@dataclass(frozen=True, slots=True)
class SpikeNews:
    """An incident as it stands."""

    id: str
    kind: Any  # Kind
    confidence: float
    reason: str
    state: str
    outcome: Any  # Outcome | None
    heading: str  # what every view calls it
    summary: str  # what happened
    first: FirstMove
    onset_step: int
    peak_step: int
    pre_loss: float | None
    peak_loss: float | None
    height: str | None  # of the loss over its trend
    newest_step: int
    recurrences: int
    opened_at: datetime
    closed_at: datetime | None
    escalations: int = 0
    waiting: Waiting | None = None
    sure: bool = True  # whether the policy acts at this confidence
    cause: str = ""  # the likeliest with what speaks for it, in words; "" where it is not known
    last_command: str | None = None  # what became of the newest one, in words
    job: str | None = None  # what to look at where the run's job may have died
    decided: str | None = None  # the same in few: "approved by Ada: roll back to step-380"
    came_back: bool = False  # it was gone before it was there again
    rose: bool = True  # whether the loss did: its peak stands out
    lost: str = ""  # steps, time, tokens and money, of one that is closed
    own_acts: tuple[str, ...] = ()  # what the job did by its emergency rule, in sentences
    if_job_dies: str = ""  # what would be left to go back to; "" where nothing is to be undone
    acknowledged_by: str | None = None  # who looks at it
    assignee: str | None = None  # whose it is


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """One message. `key` names the conversation on every other side, whatever it is told."""

    key: str
    sequence: int  # of the conversation, from 1
    topics: frozenset[Topic]
    project: str
    run: str
    run_state: str
    title: str
    at: datetime
    spike: SpikeNews | None = None
    links: Mapping[str, str] = field(default_factory=dict)  # what for -> address
    job: str | None = None  # what to look at where its job may have died
    standing: tuple[str, ...] = ()  # of the run, in sentences; for a message about no incident
    picture: IncidentPicture | None = None  # for a channel that shows one
    lost: tuple[str, ...] = ()  # other channels that did not get a message of this

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", printable(self.title))

    @property
    def over(self) -> bool:
        """Whether it ends the conversation."""
        if Topic.TEST in self.topics:
            return True
        if self.spike is None:
            return bool(self.topics & LAST)
        return self.spike.state == "closed"

    @property
    def answered(self) -> bool:
        """Whether somebody has taken it in hand."""
        if self.spike is not None and self.spike.acknowledged_by is not None:
            return True
        return bool(self.topics & {Topic.APPROVED, Topic.REJECTED}) and not self.asks

    @property
    def asks(self) -> bool:
        """Whether somebody has to decide."""
        return self.spike is not None and self.spike.waiting is not None

    @property
    def urgency(self) -> Urgency:
        """What it asks of whoever gets it."""
        topics = self.topics if self.asks else self.topics - ASKING
        spike = self.spike
        kind = None if spike is None else spike.kind if spike.sure else Kind.RECOVERABLE
        return urgency_of(topics or self.topics, kind)

    def body(self) -> str:
        """The message as plain text, one fact a line."""
        return "\n".join([*self.lines(), *self.link_lines()])

    def lines(self) -> list[str]:
        """Its facts without the links."""
        lines = [*(_of_run(self) if self.spike is None else _of_spike(self.spike))]
        if self.lost:
            names = ", ".join(self.lost)
            lines.append(f"Not delivered to {names}: the delivery log says why.")
        return [printable(line) for line in lines]

    def link_lines(self) -> list[str]:
        """Its links, one a line."""
        return [printable(f"{name}: {url}") for name, url in self.links.items()]

    def facts(self) -> dict[str, Any]:
        """The message as plain data, for programs."""
        return {
            "key": self.key,
            "sequence": self.sequence,
            "topics": sorted(topic.value for topic in self.topics),
            "status": "resolved" if self.over else "firing",
            "urgency": self.urgency.value,
            "project": self.project,
            "run": self.run,
            "run_state": self.run_state,
            "title": self.title,
            "text": self.body(),
            "at": self.at.isoformat(),
            "incident": None if self.spike is None else _incident(self.spike),
            "links": dict(self.links),
        }


def _incident(spike: SpikeNews) -> dict[str, Any]:
    waiting = spike.waiting
    return {
        "id": spike.id,
        "kind": spike.kind.value,
        "confidence": spike.confidence,
        "state": spike.state,
        "outcome": None if spike.outcome is None else spike.outcome.value,
        "title": spike.heading,
        "summary": spike.summary,
        "signal": spike.first.signal,
        "signal_step": spike.first.step,
        "onset_step": spike.onset_step,
        "newest_step": spike.newest_step,
        "opened_at": spike.opened_at.isoformat(),
        "acknowledged_by": spike.acknowledged_by,
        "assignee": spike.assignee,
        "proposal": None
        if waiting is None
        else {
            "command": waiting.command,
            "revision": waiting.revision,
            "does": waiting.sentence,
            "reason": PARAGRAPH.join(waiting.reason),
            "checks": list(waiting.checks),
            "cost_steps": waiting.cost_steps,
            "expires_in_s": waiting.can_wait_s,
        },
    }


def _of_run(message: ChannelMessage) -> Sequence[str]:
    if Topic.TEST in message.topics:
        return [f"A test of this channel of project {message.project}. Nothing is wrong."]
    job = [message.job] if message.job else []
    return [*message.standing[:1], *job, *message.standing[1:]]


def _of_spike(spike: SpikeNews) -> Sequence[str]:
    lines = [*brief(spike)]
    if spike.job is not None:
        lines.append(spike.job)
    if (waiting := spike.waiting) is not None:
        lines += [f"Check first: {check}" for check in waiting.checks]
    if had := _had(spike):
        lines.append(had)
    if spike.escalations:
        lines.append(f"Nobody has answered; escalation {spike.escalations}")
    if spike.last_command and waiting is not None:
        lines.append(spike.last_command)
    if waiting is not None:
        lines += _why(*(said for said in waiting.reason if not _is_said(said, spike)))
    first = ""
    if spike.first.signal != Signal.LOSS:
        first = f"First to move: {word(spike.first.signal)}, step {count(spike.first.step)}. "
    lines.append(f"{first}Onset at step {count(spike.onset_step)}{_losses(spike)}")
    if waiting is not None and waiting.pace:
        lines.append(waiting.pace)
    return [_stopped(line) for line in lines]


def _had(spike: SpikeNews) -> str:
    """Who looks at it and whose it is; empty: nobody said so."""
    said = [f"acknowledged by {spike.acknowledged_by}"] if spike.acknowledged_by else []
    said += [f"assigned to {spike.assignee}"] if spike.assignee else []
    text = ", ".join(said)
    return text[:1].upper() + text[1:]


def brief(spike: SpikeNews) -> Sequence[str]:
    """What is needed to decide, what happened, the verdict, the cause, what the job did by itself,
    the action with its price, what waiting costs and until when it can, and what is left if the job
    dies; of one that is closed, what it cost."""
    lines = [spike.summary, _verdict(spike)]
    if spike.cause:
        lines.append(spike.cause)
    lines += spike.own_acts
    if (waiting := spike.waiting) is not None:
        lines += [f"Proposed: {waiting.brief}. Costs {waiting.price}", _waiting(waiting)]
    elif spike.last_command:
        lines.append(spike.last_command)
    if spike.lost:
        lines.append(f"Lost: {spike.lost}")
    if spike.if_job_dies:
        lines.append(spike.if_job_dies)
    return [_stopped(line) for line in lines]


def _verdict(spike: SpikeNews) -> str:
    """What it is and why; of one that is over how it ended, which is what the reason is of."""
    if spike.state == "closed":
        return f"{ENDINGS[spike.outcome].capitalize()}: {spike.reason}"
    if spike.state == IncidentState.RECOVERING:
        return f"Being judged: {spike.reason}"
    return (
        f"{word(spike.kind.value).capitalize()} ({sure_phrase(spike.confidence)}): {spike.reason}"
    )


def _stopped(line: str) -> str:
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _waiting(waiting: Waiting) -> str:
    adds = f"; each minute adds {waiting.a_minute}" if waiting.a_minute else ", at no further cost"
    if waiting.a_minute is None:
        adds = "; how many steps each minute adds is not known"
    return f"Can wait {duration(waiting.can_wait_s)}{adds}. Then it expires: nothing is done"


def _is_said(paragraph: str, spike: SpikeNews) -> bool:
    """Whether a paragraph of a reason is the cause or the verdict, which stand above as of now."""
    verdicts = tuple(f"{word(kind.value).capitalize()} (" for kind in Kind)
    return paragraph == spike.cause or paragraph.startswith((*verdicts, *CAUSES))


def _why(*said: str) -> Sequence[str]:
    """One paragraph a line."""
    return [f"Why: {said[0]}", *said[1:]] if said else []


def _losses(spike: SpikeNews) -> str:
    """What is known of the loss: before, at its peak, now; nothing of what is not."""
    known = []
    if spike.pre_loss is not None:
        known.append(f"loss before {number(spike.pre_loss)}")
    if spike.peak_loss is not None and spike.rose:
        known.append(f"peak {number(spike.peak_loss)} at step {count(spike.peak_step)}")
    if spike.height is not None:
        known.append(f"{spike.height} at step {count(spike.newest_step)}")
    return f"; {', '.join(known)}" if known else ""


def title_of(
    topics: frozenset[Topic],
    run: str,
    run_state: str,
    spike: SpikeNews | None,
    project: str,
    job: str | None = None,
) -> str:
    """The one line that a pager shows."""
    if Topic.TEST in topics:
        return f"spikeguard: a test of a channel of project {project}"
    if spike is None:
        look = ", look at the job" if job else ""
        return f"{run}: the run {_RUN_WORDS.get(run_state, f'is {run_state}')}{look}"
    what = spike.heading
    if spike.state == "closed":
        look = ", look at the job" if spike.job else ""
        return f"{spike.id}: {ENDINGS[spike.outcome]}{look} ({what})"
    if topics == {Topic.ACKNOWLEDGED} and spike.acknowledged_by is not None:
        return f"{spike.id}: acknowledged by {spike.acknowledged_by} ({what})"
    if spike.waiting is not None:
        asked = "nobody has answered, decide" if Topic.ESCALATED in topics else "decide"
        again = f" {_after(spike)}" if spike.recurrences else ""
        return f"{spike.id}: {what}{again}, {asked}: {spike.waiting.brief}"
    if topics & OF_COMMAND and Topic.RECURRED not in topics and spike.decided is not None:
        return f"{spike.id}: {spike.decided}"
    if spike.recurrences:
        return f"{spike.id}: {what} {_after(spike)}"
    ahead = what.endswith("spike") and spike.first.signal != Signal.LOSS
    where = f", {word(spike.first.signal)} first" if ahead else ""
    return f"{spike.id}: {what} at step {count(spike.onset_step)}{where}"


def _after(spike: SpikeNews) -> str:
    """That it was there again."""
    return "came back" if spike.came_back else "stayed after a command or a restart"


_RUN_WORDS = {
    "silent": "sends nothing any more",
    "live": "sends again",
    "ended": "is over",
}
