"""From rows to a message: the run or the incident as it is at the moment of sending.

Law: reads only, in one transaction, at the moment of telling; a message that waited tells the
present, not what was so when it was put into the outbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import quote

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import TAKEN_BACK, WAITING
from spikeguard_core.lifecycle.damage import rose
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.notification.delivery import SentState, Subject
from spikeguard_core.notification.topics import Topic
from spikeguard_core.policy.cost import Cost, can_wait_s, cost_of
from spikeguard_core.policy.finding import checks_of, diagnose, first_move_of
from spikeguard_core.policy.remedies import ACTING
from spikeguard_core.policy.targeting import left_if_job_dies
from spikeguard_protocol import CommandState, IncidentId, Outcome, RunId, Verb
from spikeguard_protocol.paths import incident_page_path
from spikeguard_protocol.phrases import action_phrase, ended_phrase, paragraphs
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow, IncidentRow
from spikeguard_server.jobs.postmortem_facts import postmortem_facts
from spikeguard_server.notify.message import ChannelMessage, SpikeNews, Waiting, title_of
from spikeguard_server.report.cost_table import lost_words
from spikeguard_server.report.heading import heading_of, summary_of
from spikeguard_server.report.record import own_rule_sentence
from spikeguard_server.report.symptoms import spent_by
from spikeguard_server.report.wording import count, duration, number, plural
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import commands_of, commands_waiting, own_rule_acts
from spikeguard_server.store.conversations import Conversation, lost_channels
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.reads.costs import Pace, read_pace
from spikeguard_server.store.reads.notices import NotifiedRun, read_escalations, read_told
from spikeguard_server.store.runs import run_row


@dataclass(frozen=True, slots=True)
class Facts:
    """What a message is made of and judged by."""

    subject: Subject
    told: NotifiedRun
    spike: SpikeNews | None
    links: Mapping[str, str]
    now: datetime
    lost: tuple[str, ...] = ()  # other channels that did not get a message of this


def read_facts(
    connection: sql.Connection, held: Conversation, settings: Settings, now: datetime
) -> Facts:
    """The subject of a conversation as it stands now."""
    told = read_told(connection, held.key.run_id)
    lost = lost_channels(connection, held.key.run_id, held.key.incident)
    others = tuple(name for name in lost if name != held.key.channel)
    run = RunId(told.project, told.name)
    number = held.key.incident
    if number == 0:
        subject = Subject(told.name, None, None, 0, history=False)
        return Facts(
            subject, told, None, _run_links(settings, run, told.open_incident), now, others
        )
    row = read_incident(connection, held.key.run_id, run, number)
    spike, waiting = read_spike(connection, row)
    incident = row.incident
    if incident.outcome in (None, Outcome.RUN_ENDED):
        spike = replace(spike, job=told.job)
    subject = Subject(
        told.name, incident.kind, incident.outcome, spike.escalations, history=told.history,
        acknowledged_by=None if incident.outcome is not None else row.acknowledged_by,
    )  # fmt: skip
    return Facts(subject, told, spike, _links(settings, row.id, waiting), now, others)


def read_spike(connection: sql.Connection, row: IncidentRow) -> tuple[SpikeNews, int | None]:
    """An incident in words, and the number of the command that waits."""
    incident, pace = row.incident, read_pace(connection, row)
    acts = own_rule_acts(connection, row.run_id, incident.onset_step, row.closed_at)
    newest = _newest(commands_of(connection, *row.key))
    waiting = commands_waiting(connection, [row.key]).get(row.key)
    spike = SpikeNews(
        id=str(row.id),
        kind=incident.kind,
        confidence=incident.confidence,
        reason=incident.reason,
        state=incident.state,
        outcome=incident.outcome,
        heading=heading_of(incident),
        summary=summary_of(incident),
        first=first_move_of(incident),
        onset_step=incident.onset_step,
        peak_step=incident.peak_step,
        pre_loss=incident.pre_loss,
        peak_loss=incident.peak_loss,
        rose=rose(incident),
        height=incident.clear_height,
        newest_step=incident.newest_step,
        recurrences=incident.recurrences,
        opened_at=row.opened_at,
        closed_at=row.closed_at,
        escalations=read_escalations(connection, *row.key),
        waiting=None if waiting is None else _waiting(waiting, pace),
        sure=incident.confidence >= pace.policy.act_confidence,
        cause=diagnose(incident).advice,
        last_command=None if newest is None else _last(newest),
        decided=None if newest is None else _decided(newest),
        came_back=incident.came_back,
        lost=_lost(connection, row),
        own_acts=tuple(own_rule_sentence(act, pace.situation.step) for act in acts),
        if_job_dies=_if_job_dies(incident, pace),
        acknowledged_by=row.acknowledged_by,
        assignee=row.assignee,
    )
    return spike, None if waiting is None else waiting.number


def _lost(connection: sql.Connection, row: IncidentRow) -> str:
    """What a closed incident cost, as its post-mortem says it; empty where nothing was lost."""
    run = run_row(connection, row.run_id)
    if row.closed_at is None or run is None:
        return ""
    facts = postmortem_facts(connection, run, row.number, row.closed_at)
    spent = spent_by(facts)
    return lost_words(facts, spent) if spent.steps_lost else ""


def _if_job_dies(incident: Incident, pace: Pace) -> str:
    if incident.outcome is not None or incident.kind not in ACTING or not pace.situation.trains:
        return ""
    return left_if_job_dies(pace.situation.targets, incident)


def _waiting(row: CommandRow, pace: Pace) -> Waiting:
    cost = cost_of(row.action, pace.situation, pace.policy)
    return Waiting(
        command=str(row.id),
        revision=row.revision,
        sentence=action_phrase(row.action),
        brief=action_phrase(row.action, brief=True),
        reason=paragraphs(row.reason),
        cost_steps=cost.steps,
        price=_price(cost, pace.policy.currency),
        expires_in_s=max(0.0, row.expires_in_s),
        can_wait_s=can_wait_s(row.expires_in_s, row.expires_at_step, pace.situation),
        a_minute=_a_minute(cost, pace.policy.currency),
        pace=_pace(cost),
        checks=checks_of(pace.situation.incident),
    )


def _price(cost: Cost, currency: str) -> str:
    """`260 steps (2.2 min), 12.00 USD`."""
    money = "" if cost.money is None else f", {cost.money:,.2f} {currency}"
    took = "" if cost.seconds is None else f" ({duration(cost.seconds)})"
    return f"{plural(cost.steps, 'step')}{took}{money}"


def _a_minute(cost: Cost, currency: str) -> str | None:
    """What each minute of waiting adds; empty where that is nothing, None where it is not known."""
    if not cost.waiting_steps:
        return None if cost.waiting_steps is None else ""
    money = "" if cost.waiting_money is None else f" and {cost.waiting_money:,.2f} {currency}"
    return f"{plural(cost.waiting_steps, 'step')}{money}"


def _pace(cost: Cost) -> str:
    """How time is reckoned; empty where it is not known."""
    if cost.pace.seconds is None:
        return ""
    pace, steps = number(cost.pace.seconds, 3), cost.pace.of_steps
    return f"Reckoned at {pace} s a step, the median of {plural(steps, 'step')} before the spike"


def _newest(known: Sequence[CommandRow]) -> CommandRow | None:
    """The newest command that is more than a proposal and more than a look."""
    untold = {*WAITING, CommandState.SUPERSEDED}  # the latter stands in what replaced it
    decided = (
        row for row in reversed(known) if row.state not in untold and row.verb is not Verb.WATCH
    )
    return next(decided, None)


def _decided(row: CommandRow) -> str:
    """What became of it, as a title says it."""
    person = row.decided_by or "the policy"
    where = "" if row.applied_step is None else f" at step {count(row.applied_step)}"
    said = {
        CommandState.APPROVED: f"approved by {person}",
        CommandState.DELIVERED: f"approved by {person}",
        CommandState.REJECTED: f"rejected by {person}",
        CommandState.APPLIED: f"applied{where}",
        CommandState.JUDGED: f"applied{where}",
    }.get(row.state, COMMAND_STATE_WORDS[row.state].replace(": ", ", "))
    return f"{said}: {action_phrase(row.action, brief=True)}"


def _last(row: CommandRow) -> str:
    """What became of it, with who decided and why."""
    ended = ended_phrase(
        COMMAND_STATE_WORDS[row.state],
        row.judgement or row.result or row.end_reason or row.decision_reason,
    )
    person = f", decided by {row.decided_by}" if row.decided_by else ""
    nothing = " Nothing was done." if row.state in TAKEN_BACK else ""
    what = action_phrase(row.action, brief=True)
    return f"Last command{person}: {what}. {ended}{nothing}"


def _links(settings: Settings, incident: IncidentId, waiting: int | None) -> dict[str, str]:
    run = incident.run
    found = {}
    if waiting is not None:
        path = f"/confirm/{quote(run.project)}/{quote(run.name)}/{incident.number}/{waiting}"
        found["Decide"] = settings.public_url.rstrip("/") + path
    found["Open"] = settings.public_url.rstrip("/") + incident_page_path(incident)
    if settings.dashboard_url:
        which = quote(f"{run.project}/{run.name}", safe="")
        base = settings.dashboard_url.rstrip("/")
        found["Curves"] = f"{base}/incident?run={which}&number={incident.number}"
    return found


def _run_links(settings: Settings, run: RunId, incident: int | None) -> dict[str, str]:
    found = {}
    if incident is not None:
        path = incident_page_path(IncidentId(run, incident))
        found["Open"] = settings.public_url.rstrip("/") + path
    if settings.dashboard_url:
        which = quote(f"{run.project}/{run.name}", safe="")
        found["Run"] = f"{settings.dashboard_url.rstrip('/')}/run?run={which}"
    return found


def _standing(told: NotifiedRun) -> tuple[str, ...]:
    """A run in words: whether it sends, how far it is, and what is open in it."""
    said = {
        "silent": f"Nothing came from run {told.name} for {duration(told.age_s)}",
        "live": f"Run {told.name} sends again",
        "ended": f"Run {told.name} is over",
    }.get(told.state, f"Run {told.name} is {told.state}")
    if told.last_step is not None:
        loss = "" if told.last_loss is None else f", its loss {number(told.last_loss)}"
        said = f"{said}. Its newest step is {count(told.last_step)}{loss}"
    if told.open_incident is None:
        return (f"{said}.",)
    waits = ", and a decision waits" if told.waits else ""
    return (f"{said}.", f"Incident {told.name}#{told.open_incident} is open{waits}.")


def key_of(run: RunId, incident: int) -> str:
    """The name of a conversation on every other side."""
    return f"spikeguard/{run.project}/{run.name}#{incident}"


def message_of(
    facts: Facts, topics: frozenset[Topic], sequence: int, incident: int
) -> ChannelMessage:
    """The message that `topics` make of `facts`."""
    told = facts.told
    return ChannelMessage(
        key=key_of(RunId(told.project, told.name), incident),
        sequence=sequence,
        topics=topics,
        project=told.project,
        run=told.name,
        run_state=told.state,
        title=title_of(topics, told.name, told.state, facts.spike, told.project, told.job),
        at=facts.now,
        spike=facts.spike,
        job=told.job,
        standing=_standing(told),
        links=facts.links,
        lost=facts.lost,
    )


def test_message(project: str, now: datetime, who: str) -> ChannelMessage:
    """What the test button sends."""
    topics = frozenset({Topic.TEST})
    return ChannelMessage(
        key=f"spikeguard/{project}/test/{now.timestamp():.6f}",
        sequence=1,
        topics=topics,
        project=project,
        run="test",
        run_state="live",
        title=f"{title_of(topics, '', '', None, project)}, by {who}",
        at=now,
    )


def said(held: Conversation, now: datetime) -> SentState:
    """What the channel was told before, as the judge asks it."""
    ago = None if held.told_at is None else max(0.0, (now - held.told_at).total_seconds())
    return SentState(held.told, ago)
