"""The root cause, for a reader: what it is, the evidence, and what else it may be."""

from __future__ import annotations

from spikeguard_core.diagnosis.change_effect import learning_rate_change
from spikeguard_core.diagnosis.evidence import contrast, worst_sequence
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.policy.finding import diagnose, first_move_of
from spikeguard_core.suspicion import worth_showing
from spikeguard_protocol import BatchDetail, Cause, Signal
from spikeguard_protocol.phrases import batches_phrase, cause_phrase, sure_phrase
from spikeguard_server.report.document import Block
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.symptoms import open_curves
from spikeguard_server.report.wording import capital, plural, word

CAUSES = ("Likely cause (", "The cause is not known")  # how a paragraph on the cause begins
MOST_REASONS = 3  # on the page; the appendix has all
MOST_OTHERS = 4
MOST_AGAINST = 2
MOST_DOCUMENTS = 8  # of a batch, and characters of the name of each
LONGEST_NAME = 120


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
    if likely is None:
        return "Nobody asked for its cause when it happened."
    if finding.known:
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
        items += _lead(facts)
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


def _lead(facts: PostMortem) -> list[str]:
    """What moved ahead of the loss, where no cause is known that would say it."""
    first, moves = first_move_of(facts.incident), facts.incident.first_moves
    loss, name = moves.get(Signal.LOSS), word(first.signal)
    if not moves or first.signal == Signal.LOSS:
        return []
    ahead = "" if loss is None else f", {plural(loss - first.step, 'step')} before the loss"
    return [f"{capital(name)} moved first, at step {first.step:,}{ahead}."]
