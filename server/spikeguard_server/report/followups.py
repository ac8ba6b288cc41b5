"""Suggested follow-ups of an incident.

Law: every follow-up names the fact it comes from; where no fact asks for anything, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from spikeguard_core.diagnosis.evidence import REPLICAS_APART
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.job_end import look_at_job
from spikeguard_core.policy.finding import Finding, diagnose, follow_ups_of
from spikeguard_core.policy.remedies import DATA
from spikeguard_protocol import BatchRange, CommandState, Outcome, Rollback, Signal, Verb, verb_of
from spikeguard_protocol.phrases import batches_phrase, times_phrase
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.symptoms import symptoms_of
from spikeguard_server.report.wording import duration, off_trend

SLOW_DECISION_S = 600.0
FAR_STEPS = 50  # from the target to the onset: from here on a nearer snapshot would have paid
SLOW_DETECTION_STEPS = 10


def followups_of(facts: PostMortem) -> tuple[str, ...]:
    """Things to do, the most pressing first."""
    return tuple(text for rule in _RULES for text in rule(facts))


def _rollbacks(facts: PostMortem) -> Iterator[tuple[CommandRow, Rollback]]:
    for command in facts.commands:
        if isinstance(command.action, Rollback) and command.state in EXECUTED:
            yield command, command.action


def _of_the_cause(facts: PostMortem) -> Iterator[str]:
    """What the likely cause asks for, by the table of remedies."""
    yield from follow_ups_of(facts.incident, _skipped(facts))


def _skipped(facts: PostMortem) -> tuple[BatchRange, ...]:
    found = [action.skip for _, action in _rollbacks(facts) if action.skip is not None]
    within = {a for a in found for b in found if a != b and b.first <= a.first and a.end <= b.end}
    return tuple(skip for skip in dict.fromkeys(found) if skip not in within)


def _came_back(facts: PostMortem) -> Iterator[str]:
    incident, again = facts.incident, facts.incident.recurrences
    if again and not _finding(facts).known:
        often = "" if again == 1 else f" {times_phrase(again)}"
        came = f"came back{often}" if incident.came_back else "stayed after a command or a restart"
        yield (
            f"It {came}. Look at the learning rate and at beta2 before the next "
            f"warm-up or stage change, and at the data around position {_position(facts)}."
        )


def _finding(facts: PostMortem) -> Finding:
    return diagnose(facts.incident)


def _position(facts: PostMortem) -> str:
    batches = facts.incident.newest_onset_batches
    return "of the onset" if batches is None else f"{batches.first:,}"


def _data(facts: PostMortem) -> Iterator[str]:
    """Batches that were skipped or stood out although the data is not what is blamed."""
    finding, incident = _finding(facts), facts.incident
    if finding.remedy.diagnosis in DATA:
        return
    for skip in _skipped(facts):
        yield (
            f"Look at the data of {batches_phrase(skip)}: it "
            f"was skipped {_although(finding)}. It returns in the next epoch and in every run on "
            "this data order."
        )
    if incident.outcome is Outcome.OUTLIER and incident.onset_batches is not None:
        yield (
            f"Look at the batch at position {incident.onset_batches.first:,}: its loss stood out "
            "while the model did not move."
        )


def _although(finding: Finding) -> str:
    if finding.known:
        return f"although the likely cause is another ({finding.remedy.title})"
    return "although the cause is not known"


def _dropped(facts: PostMortem) -> Iterator[str]:
    if facts.incident.stuck:
        yield (
            f"From step {facts.incident.onset_step:,} on every update was dropped. Find what makes "
            "them so (data, a layer, a kernel, a rank): a run that is stuck trains nothing."
        )
    elif facts.incident.dropped and not _finding(facts).known:
        yield (
            f"The update of step {facts.incident.onset_step:,} was not finite and was kept out. "
            "Find its source (a layer, a kernel, a rank): the next one may not be alone."
        )


def _level(facts: PostMortem) -> Iterator[str]:
    seen = symptoms_of(facts)
    if facts.incident.outcome is not Outcome.LEVEL_ACCEPTED:
        return
    where = "above its earlier trend"
    if seen.later_above is not None:
        where = off_trend(seen.later_above)
    yield (
        f"The run goes on {where}. Compare a validation "
        "loss with the last checkpoint from before the spike and decide whether that is wanted."
    )


_NOT_DONE = {
    CommandState.REFUSED: "was refused by the job",
    CommandState.FAILED: "failed in the job",
}


def _damaged(facts: PostMortem) -> Iterator[str]:
    """What may not be used of a run that ended above its trend with nothing done about it."""
    seen, incident = symptoms_of(facts).later_above, facts.incident
    if incident.outcome is not Outcome.RUN_ENDED or seen is None or [*_rollbacks(facts)]:
        return
    if seen.loss <= seen.error:
        return
    asked = [c.action for c in facts.commands if isinstance(c.action, Rollback)]
    target = f": {asked[-1].target} was proposed" if asked else ""
    yield (
        f"What was saved from step {incident.onset_step:,} on is from inside the damage "
        f"({off_trend(seen)}). Go on from a checkpoint of before it{target}."
    )


def _undone(facts: PostMortem) -> Iterator[str]:
    for command in facts.commands:
        if said := _NOT_DONE.get(command.state):
            why = (command.result or "no reason given").rstrip(".")
            yield f"Command {command.id} {said}: {why}. Remove the cause."
        if command.state is CommandState.UNKNOWN and verb_of(command.action) is not Verb.WATCH:
            yield f"Nobody knows what became of command {command.id}: read the job's own log."
        if command.state is CommandState.EXPIRED:
            yield _unanswered(command)
        if command.state is CommandState.UNDELIVERED:
            yield (
                f"Command {command.id} was approved and the job did not fetch it in time: look at "
                "the job's connection to the server."
            )


def _unanswered(command: CommandRow) -> str:
    """Blames nobody who had no time to answer: steps may run out within seconds."""
    waited_s = 0.0
    if command.finished_at is not None:
        waited_s = (command.finished_at - command.proposed_at).total_seconds()
    if waited_s < SLOW_DECISION_S:
        return (
            f"Command {command.id} lapsed after {duration(waited_s)}, too soon for anybody to "
            "answer: raise `expires_after_steps` or `expires_in_s` in the policy."
        )
    return (
        f"Command {command.id} waited {duration(waited_s)} and nobody answered: see who is paged "
        "for this run."
    )


def _died(facts: PostMortem) -> Iterator[str]:
    """The run was over, and not because it had finished."""
    last = facts.attempts[-1] if facts.attempts else None
    if facts.incident.outcome is not Outcome.RUN_ENDED or last is None:
        return
    ended = last.ended_at is not None
    if advice := look_at_job(last.number, ended=ended, reason=last.end_reason):
        yield advice


def _decision(facts: PostMortem) -> Iterator[str]:
    for command in facts.commands:
        if command.decided_at is None or command.automatic or command.state not in EXECUTED:
            continue
        waited_s = (command.decided_at - command.proposed_at).total_seconds()
        if waited_s > SLOW_DECISION_S:
            yield (
                f"Command {command.id} waited {duration(waited_s)} for its approval while the run "
                "trained on. Consider automatic approval within a budget for its verb."
            )


def _targets(facts: PostMortem) -> Iterator[str]:
    gaps = [facts.incident.onset_step - action.step for _, action in _rollbacks(facts)]
    if gaps and min(gaps) > FAR_STEPS:
        yield (
            f"The rollback went to a target {min(gaps)} steps before the onset. Closer snapshots "
            "would have saved most of these steps, if the damage began at the onset."
        )


def _detection(facts: PostMortem) -> Iterator[str]:
    delay = facts.incident.detected_step - facts.incident.onset_step
    if delay <= SLOW_DETECTION_STEPS:
        return
    if facts.incident.signal == REPLICAS_APART:
        yield (
            f"The ranks may have been apart for {delay + 1} steps before it was seen. A smaller "
            "`replica_checksum_every` compares them more often."
        )
    else:
        yield (
            f"It took {delay} steps to detect. Look at the curve: was the rise that slow, or is "
            "the loss logged too rarely?"
        )


def _signals(facts: PostMortem) -> Iterator[str]:
    measured = {signal for curve in facts.curves for signal in curve.values}
    if measured and not measured & {Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP}:
        yield "Only the loss was reported. The gradient norm would have shown what came first."


_RULES = (
    _died,
    _of_the_cause,
    _came_back,
    _data,
    _dropped,
    _level,
    _damaged,
    _undone,
    _decision,
    _targets,
    _detection,
    _signals,
)
