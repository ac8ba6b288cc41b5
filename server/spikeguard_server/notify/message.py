"""A message to a channel about an incident or a run, as it is now.

Pure: facts and their words. A message carries no configuration, and a curve only in a mail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from spikeguard_core.lifecycle.command_life import EXECUTED, TAKEN_BACK
from spikeguard_core.lifecycle.incident import Incident, rose
from spikeguard_core.notification.topics import (
    ANSWERS,
    ASKING,
    LAST,
    OF_COMMAND,
    Topic,
    Urgency,
    urgency_of,
)
from spikeguard_core.policy.cost import Cost
from spikeguard_core.policy.finding import checks_of, diagnose, first_move_of
from spikeguard_protocol import CommandState, IncidentState, Kind, Signal
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.phrases import action_phrase, duration_phrase, paragraphs, sure_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow, IncidentRow
from spikeguard_server.report.causes import CAUSES, lead_of
from spikeguard_server.report.facts import IncidentPicture
from spikeguard_server.report.heading import heading_of, peak_of, summary_of
from spikeguard_server.report.wording import (
    ENDINGS,
    capital,
    decision_of,
    how_it_ended,
    money,
    number,
    own_rule_sentence,
    plural,
    price_of,
    step_of,
    word,
)
from spikeguard_server.store.reads.runs import NotifiedRun

_RUN_WORDS = {"silent": "sends nothing any more", "live": "sends again", "ended": "is over"}


@dataclass(frozen=True, slots=True)
class SpikeNews:
    """An incident as it stands."""

    row: IncidentRow
    waiting: CommandRow | None = None  # what is proposed
    cost: Cost | None = None  # of that
    can_wait_s: float = 0.0  # until the earliest of its deadlines, in time and in steps
    newest: CommandRow | None = None  # the newest that is decided and more than a look
    escalations: int = 0
    sure: bool = True  # whether the policy acts at this confidence
    currency: str = "USD"
    job: str | None = None  # what to look at where the run's job may have died
    lost: str = ""  # steps, time, tokens and money, of one that is closed
    own_acts: Sequence[CommandRow] = ()  # of the job, by its emergency rule
    if_job_dies: str = ""  # what would be left to go back to; "" where nothing is to be undone

    @property
    def incident(self) -> Incident:
        return self.row.incident

    @property
    def closed(self) -> bool:
        return self.incident.state is IncidentState.CLOSED

    @property
    def cause(self) -> str:
        """The likeliest with what speaks for it, in words."""
        return diagnose(self.incident).advice


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """One message. `key` names the conversation on every other side, whatever it is told."""

    key: str
    sequence: int  # of the conversation, from 1
    topics: frozenset[Topic]
    told: NotifiedRun
    at: datetime
    spike: SpikeNews | None = None
    links: Mapping[str, str] = field(default_factory=dict)  # what for -> address
    picture: IncidentPicture | None = None  # for a channel that shows one
    lost: tuple[str, ...] = ()  # other channels that did not get a message of this
    by: str = ""  # who pressed the button of a test

    @property
    def title(self) -> str:
        """The one line that a pager shows."""
        return printable(_title(self))

    @property
    def over(self) -> bool:
        """Whether it ends the conversation."""
        if Topic.TEST in self.topics:
            return True
        return bool(self.topics & LAST) if self.spike is None else self.spike.closed

    @property
    def answered(self) -> bool:
        """Whether somebody has taken it in hand."""
        if self.spike is not None and self.spike.row.acknowledged_by is not None:
            return True
        return bool(self.topics & ANSWERS) and not self.asks

    @property
    def asks(self) -> bool:
        """Whether somebody has to decide."""
        return self.spike is not None and self.spike.waiting is not None

    @property
    def urgency(self) -> Urgency:
        """What it asks of whoever gets it."""
        topics = self.topics if self.asks else self.topics - ASKING
        spike = self.spike
        kind = None
        if spike is not None:
            kind = spike.incident.kind if spike.sure else Kind.RECOVERABLE
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
            "project": self.told.project,
            "run": self.told.name,
            "run_state": self.told.state,
            "title": self.title,
            "text": self.body(),
            "at": self.at.isoformat(),
            "incident": None if self.spike is None else _incident(self.spike),
            "links": dict(self.links),
        }


def _incident(spike: SpikeNews) -> dict[str, Any]:
    incident, row, first = spike.incident, spike.row, first_move_of(spike.incident)
    proposal, waiting = None, spike.waiting
    if waiting is not None and spike.cost is not None:
        proposal = {
            "command": str(waiting.id),
            "revision": waiting.revision,
            "does": action_phrase(waiting.action),
            "reason": waiting.reason,
            "checks": list(checks_of(incident)),
            "cost_steps": spike.cost.steps,
            "expires_in_s": spike.can_wait_s,
        }
    return {
        "id": str(row.id),
        "kind": incident.kind.value,
        "confidence": incident.confidence,
        "state": incident.state.value,
        "outcome": None if incident.outcome is None else incident.outcome.value,
        "title": heading_of(incident),
        "summary": summary_of(incident),
        "signal": first.signal,
        "signal_step": first.step,
        "onset_step": incident.onset_step,
        "newest_step": incident.newest_step,
        "opened_at": row.opened_at.isoformat(),
        "acknowledged_by": row.acknowledged_by,
        "assignee": row.assignee,
        "proposal": proposal,
    }


def _of_run(message: ChannelMessage) -> Sequence[str]:
    """Whether it sends, how far it is, and what is open in it."""
    told = message.told
    if Topic.TEST in message.topics:
        return [f"A test of this channel of project {told.project}. Nothing is wrong."]
    said = f"Run {told.name} {_RUN_WORDS[told.state]}"
    if told.state == "silent":
        said = f"Nothing came from run {told.name} for {duration_phrase(told.age_s)}"
    if told.last_step is not None:
        loss = "" if told.last_loss is None else f", its loss {number(told.last_loss)}"
        said = f"{said}. Its newest step is {step_of(told.last_step)}{loss}"
    lines = [f"{said}.", *([told.job] if told.job else [])]
    if told.open_incident is not None:
        waits = ", and a decision waits" if told.waits else ""
        lines.append(f"Incident {told.name}#{told.open_incident} is open{waits}.")
    return lines


def _of_spike(spike: SpikeNews) -> Sequence[str]:
    incident, waiting = spike.incident, spike.waiting
    lines = [*brief(spike)]
    if spike.job is not None:
        lines.append(spike.job)
    if waiting is not None:
        lines += [f"Check first: {check}" for check in checks_of(incident)]
    row = spike.row
    has = [f"acknowledged by {row.acknowledged_by}"] if row.acknowledged_by else []
    has += [f"assigned to {row.assignee}"] if row.assignee else []
    if has:
        lines.append(capital(", ".join(has)))
    if spike.escalations:
        lines.append(f"Nobody has answered; escalation {spike.escalations}")
    if waiting is not None:
        if spike.newest is not None:
            lines.append(_last(spike.newest))
        # The cause and the verdict stand above as of now.
        known = (*(f"{word(kind.value).capitalize()} (" for kind in Kind), *CAUSES)
        parts = [p for p in paragraphs(waiting.reason) if p != spike.cause]
        why = [part for part in parts if not part.startswith(known)]
        lines += [f"Why: {part}" if part is why[0] else part for part in why]
    peak = f", {peak_of(incident)}" if rose(incident) else ""
    onset = f"Onset at step {step_of(incident.onset_step)}{peak}"
    lines.append(f"{lead_of(incident)} {onset}".strip())
    return [_stopped(line) for line in lines]


def brief(spike: SpikeNews) -> Sequence[str]:
    """What is needed to decide, what happened, the verdict, the cause, what the job did by itself,
    the action with its price, what waiting costs and until when it can, and what is left if the job
    dies; of one that is closed, what it cost."""
    lines = [summary_of(spike.incident), _verdict(spike.incident)]
    if spike.cause:
        lines.append(spike.cause)
    lines += map(own_rule_sentence, spike.own_acts)
    if spike.waiting is not None and spike.cost is not None:
        does = action_phrase(spike.waiting.action, brief=True)
        cost = spike.cost
        price = price_of(cost.steps, cost.seconds, cost.money, spike.currency)
        lines += [f"Proposed: {does}. Costs {price}", _waits(spike, cost)]
    elif spike.newest is not None:
        lines.append(_last(spike.newest))
    if spike.lost:
        lines.append(f"Lost: {spike.lost}")
    if spike.if_job_dies:
        lines.append(spike.if_job_dies)
    return [_stopped(line) for line in lines]


def _verdict(incident: Incident) -> str:
    """What it is and why; of one that is over how it ended, which is what the reason is of."""
    if incident.state is IncidentState.CLOSED:
        return f"{ENDINGS[incident.outcome].capitalize()}: {incident.reason}"
    if incident.state is IncidentState.RECOVERING:
        return f"Being judged: {incident.reason}"
    kind = word(incident.kind.value).capitalize()
    return f"{kind} ({sure_phrase(incident.confidence)}): {incident.reason}"


def _stopped(line: str) -> str:
    return line if not line or line.endswith((".", "!", "?")) else f"{line}."


def _waits(spike: SpikeNews, cost: Cost) -> str:
    adds = ", at no further cost"
    if cost.waiting_steps is None:
        adds = "; how many steps each minute adds is not known"
    elif cost.waiting_steps:
        adds = f"; each minute adds {plural(cost.waiting_steps, 'step')}"
        if cost.waiting_money is not None:
            adds = f"{adds} and {money(cost.waiting_money, spike.currency)}"
    return f"Can wait {duration_phrase(spike.can_wait_s)}{adds}. Then it expires: nothing is done"


def _last(row: CommandRow) -> str:
    """What became of it, with who decided and why."""
    decision = f", {decision_of(row)}" if row.decided_at is not None else ""
    said = [f"Last command{decision}: {action_phrase(row.action, brief=True)}."]
    said += [] if row.state is CommandState.REJECTED else [how_it_ended(row)]
    said += [_stopped(capital(row.decision_reason))] if row.decision_reason else []
    said += ["Nothing was done."] if row.state in TAKEN_BACK else []
    return " ".join(said)


def _title(message: ChannelMessage) -> str:
    spike, topics, told = message.spike, message.topics, message.told
    if Topic.TEST in topics:
        return f"spikeguard: a test of a channel of project {told.project}, by {message.by}"
    if spike is None:
        look = ", look at the job" if told.job else ""
        return f"{told.name}: the run {_RUN_WORDS[told.state]}{look}"
    incident, id, first = spike.incident, spike.row.id, first_move_of(spike.incident)
    what, again = heading_of(incident), ""
    if spike.closed:
        look = ", look at the job" if spike.job else ""
        return f"{id}: {ENDINGS[incident.outcome]}{look} ({what})"
    if topics == {Topic.ACKNOWLEDGED} and spike.row.acknowledged_by is not None:
        return f"{id}: acknowledged by {spike.row.acknowledged_by} ({what})"
    if incident.recurrences:
        stayed = "stayed after a command or a restart"
        again = f" {'came back' if incident.came_back else stayed}"
    if spike.waiting is not None:
        asked = "nobody has answered, decide" if Topic.ESCALATED in topics else "decide"
        does = action_phrase(spike.waiting.action, brief=True)
        return f"{id}: {what}{again}, {asked}: {does}"
    if topics & OF_COMMAND and Topic.RECURRED not in topics and spike.newest is not None:
        return f"{id}: {_decided(spike.newest)}"
    if again:
        return f"{id}: {what}{again}"
    ahead = what.endswith("spike") and first.signal != Signal.LOSS
    where = f", {word(first.signal)} first" if ahead else ""
    return f"{id}: {what} at step {step_of(incident.onset_step)}{where}"


def _decided(row: CommandRow) -> str:
    """What became of it, in few words."""
    if row.state in (CommandState.APPROVED, CommandState.DELIVERED, CommandState.REJECTED):
        said = decision_of(row)
    elif row.state in EXECUTED:
        said = "applied" if row.applied_step is None else f"applied at step {row.applied_step:,}"
    else:
        said = COMMAND_STATE_WORDS[row.state].replace(": ", ", ")
    return f"{said}: {action_phrase(row.action, brief=True)}"
