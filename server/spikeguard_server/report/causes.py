"""The root cause for a reader: what it is, the evidence, what else it may be, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from spikeguard_core.diagnosis.change_effect import learning_rate_change
from spikeguard_core.diagnosis.evidence import REPLICAS_APART, contrast, worst_sequence
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.job_end import look_at_job
from spikeguard_core.policy.finding import diagnose, first_move_of, follow_ups_of
from spikeguard_core.policy.remedies import DATA
from spikeguard_core.suspicion import worth_showing
from spikeguard_protocol import BatchDetail, Cause, CommandState, Outcome, Rollback, Signal
from spikeguard_protocol.phrases import batches_phrase, cause_phrase, duration_phrase, sure_phrase
from spikeguard_server.report.document import Block
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.figures import open_curves, symptoms_of
from spikeguard_server.report.wording import capital, lead_of, off_trend, return_of

CAUSES = ("Likely cause (", "The cause is not known")  # how a paragraph on the cause begins
MOST_REASONS = 3  # on the page; the appendix has all
MOST_OTHERS = 4
MOST_AGAINST = 2
MOST_DOCUMENTS = 8  # of a batch, and characters of the name of each
LONGEST_NAME = 120
SLOW_DETECTION_STEPS = 10


def root_cause_of(facts: PostMortem) -> tuple[Block, ...]:
    """What speaks for the cause that the first section names, and what does not."""
    batches = facts.incident.onset_batches
    onset = "" if batches is None else f"The onset trained on {batches_phrase(batches)}."
    return (onset, _evidence(facts), _others(facts))


def cause_sentence(facts: PostMortem) -> str:
    """The cause and how sure it is."""
    finding, incident = diagnose(facts.incident), facts.incident
    if incident.apart:
        return (
            "Updates keep the ranks' weights equal: a device, its memory or an optimizer that "
            "decided alone changed them."
        )
    likely = finding.suspicion
    if finding.known and likely is not None:
        what = "cause of its return" if incident.came_back else "cause"
        return (
            f"The {what} is {cause_phrase(likely.cause)} ({sure_phrase(likely.confidence)} sure)."
        )
    return finding.sentence


def _evidence(facts: PostMortem) -> tuple[str, ...]:
    incident, items = facts.incident, list[str]()
    likely = next(iter(incident.causes), None)
    if likely is not None and diagnose(incident).known:
        items += [f"{capital(reason)}." for reason in likely.reasons[:MOST_REASONS]]
        if likely.against:
            items.append(f"Against it: {'; '.join(likely.against[:MOST_AGAINST])}.")
    else:
        items += filter(None, [lead_of(incident)])
    if likely is not None and likely.cause in (Cause.BAD_BATCH, Cause.RARE_TOKENS):
        items += _batch_sentences(facts.batch)
    layer = "" if incident.first_layer is None else incident.first_layer.sentence
    if layer and not any(layer[1:] in item for item in items):
        items.append(f"{capital(layer)}.")
    if incident.recurred_batches is not None:
        items.append(f"It came back at {batches_phrase(incident.recurred_batches)}.")
    if incident.dropped:
        items.append("The agent kept the onset's update out of the weights.")
    items += _raised_rate(facts)
    return tuple(items)


def _raised_rate(facts: PostMortem) -> list[str]:
    """Where the learning rate first left its course upwards while it was open, by no command."""
    if facts.own_acts or any(c.state in EXECUTED for c in facts.acting):
        return []
    for curve, steps in open_curves(facts):
        rates = curve.rows(Signal.LR)
        for (_, older), (_, newer), (step, rate) in zip(rates, rates[1:], rates[2:], strict=False):
            left = rate > newer and learning_rate_change([older, newer], rate) is not None
            if left and step in steps and step > facts.incident.onset_step:
                rose = f"The learning rate rose from {newer:.3g} to {rate:.3g}"
                return [f"{rose} at step {step:,}, while the incident was open."]
    return []


def _batch_sentences(batch: BatchDetail | None) -> list[str]:
    """What the onset's batch shows, and which documents lay in it; empty: unknown."""
    if batch is None:
        return []
    said = [one for one in (worst_sequence(batch), contrast(batch.histogram)) if one]
    found = [" ".join(f"{one}." for one in said)] if said else []
    if batch.names:
        shown = ", ".join(name[:LONGEST_NAME] for name in batch.names[:MOST_DOCUMENTS])
        rest = ", and others" if len(batch.names) > MOST_DOCUMENTS else ""
        found.append(f"The documents of the batch: {shown}{rest}.")
    return found


def _others(facts: PostMortem) -> str:
    """Causes that diagnosis found less likely, and would still show."""
    others = [
        f"{cause_phrase(one.cause)} ({sure_phrase(one.confidence)})"
        for one in worth_showing(facts.incident.causes)[1:]
        if one.cause is not Cause.UNKNOWN
    ]
    return f"Also possible: {'; '.join(others[:MOST_OTHERS])}." if others else ""


def followups_of(facts: PostMortem) -> tuple[str, ...]:
    """Things to do, the most pressing first."""
    return tuple(
        text
        for rule in (_died, _of_the_cause, _data, _dropped, _above, _commands, _detection)
        for text in rule(facts)
    )


def _died(facts: PostMortem) -> Iterator[str]:
    """The run was over, and not because it had finished."""
    if facts.incident.outcome is not Outcome.RUN_ENDED or not facts.attempts:
        return
    if advice := look_at_job(facts.attempts[-1].number, facts.attempts[-1].end_reason):
        yield advice


def _of_the_cause(facts: PostMortem) -> Iterator[str]:
    """What the likely cause asks for, by the table of remedies; of a return whose cause is not
    known, where to look."""
    incident, again = facts.incident, return_of(facts.incident)
    yield from follow_ups_of(incident, facts.skipped)
    if again and not diagnose(incident).known:
        batches = incident.newest_onset_batches
        place = "of the onset" if batches is None else f"{batches.first:,}"
        yield (
            f"{again}. Look at the learning rate and at beta2 before the next warm-up or stage "
            f"change, and at the data around position {place}."
        )


def _data(facts: PostMortem) -> Iterator[str]:
    """Batches that were skipped or stood out although the data is not what is blamed."""
    finding, incident = diagnose(facts.incident), facts.incident
    if finding.remedy.diagnosis in DATA:
        return
    although = "although the cause is not known"
    if finding.known:
        although = f"although the likely cause is another ({finding.remedy.title})"
    for skip in facts.skipped:
        yield (
            f"Look at the data of {batches_phrase(skip)}: it was skipped {although}. It returns in "
            "the next epoch and in every run on this data order."
        )
    if incident.outcome is Outcome.OUTLIER and incident.onset_batches is not None:
        yield (
            f"Look at the batch at position {incident.onset_batches.first:,}: its loss stood out "
            "while the model did not move."
        )


def _dropped(facts: PostMortem) -> Iterator[str]:
    if diagnose(facts.incident).known:
        return  # its own follow-ups say where to look
    step = f"{facts.incident.onset_step:,}"
    if facts.incident.stuck:
        yield (
            f"From step {step} on every update was dropped. Find what makes them so (data, a "
            "layer, a kernel, a rank): a run that is stuck trains nothing."
        )
    elif facts.incident.dropped:
        yield (
            f"The update of step {step} was not finite and was kept out. Find its source (a layer, "
            "a kernel, a rank): the next one may not be alone."
        )


def _above(facts: PostMortem) -> Iterator[str]:
    """What to ask of a new level, and what may not be used of a run that ended above its trend with
    nothing done about it."""
    seen, incident = symptoms_of(facts).later_above, facts.incident
    if incident.outcome is Outcome.LEVEL_ACCEPTED:
        yield (
            "The run goes on at a new level. Compare a validation loss with the last checkpoint "
            "from before the spike and decide whether that is wanted."
        )
    ended = incident.outcome is Outcome.RUN_ENDED and not facts.rollbacks
    if ended and seen is not None and seen.least > 0.0:
        asked = [c.action for c in facts.commands if isinstance(c.action, Rollback)]
        target = f": {asked[-1].target} was proposed" if asked else ""
        since = min(incident.onset_step, first_move_of(incident).step)
        yield (
            f"What was saved from step {since:,} on is from inside the damage "
            f"({off_trend(seen)}). Go on from a checkpoint of before it{target}."
        )


_NOT_DONE = "The job did not carry command {id} out: {why}. Remove the cause."
_CAME_TO_NOTHING = {
    CommandState.REFUSED: _NOT_DONE,
    CommandState.FAILED: _NOT_DONE,
    CommandState.UNKNOWN: "Nobody knows what became of command {id}: read the job's own log.",
    CommandState.EXPIRED: (
        "Nobody answered command {id} within {waited}: see who is paged for this run, and whether "
        "`expires_in_s` and `expires_after_steps` of the policy leave the time to answer."
    ),
    CommandState.UNDELIVERED: (
        "Command {id} was approved and the job did not fetch it in time: look at the job's "
        "connection to the server."
    ),
}


def _commands(facts: PostMortem) -> Iterator[str]:
    """What came to nothing."""
    for command in facts.acting:
        ended = command.decided_at or command.finished_at or command.proposed_at
        waited_s = (ended - command.proposed_at).total_seconds()
        if text := _CAME_TO_NOTHING.get(command.state):
            why = (command.result or "no reason given").rstrip(".")
            yield text.format(id=command.id, why=why, waited=duration_phrase(waited_s))


def _detection(facts: PostMortem) -> Iterator[str]:
    """What would have shown it earlier."""
    incident = facts.incident
    delay = incident.detected_step - incident.onset_step
    if delay > SLOW_DETECTION_STEPS and incident.signal == REPLICAS_APART:
        yield (
            f"The ranks may have been apart for {delay + 1} steps before it was seen. A smaller "
            "`replica_checksum_every` compares them more often."
        )
    measured = {signal for curve in facts.curves for signal in curve.values}
    if measured and not measured & {Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP}:
        yield "Only the loss was reported. The gradient norm would have shown what came first."
