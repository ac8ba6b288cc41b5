"""The root cause, for a reader: what it is, the evidence, and what else it may be."""

from __future__ import annotations

from spikeguard_core.diagnosis.batch_evidence import contrast, worst_sequence
from spikeguard_core.lifecycle.damage import rose
from spikeguard_core.policy.finding import diagnose
from spikeguard_core.suspicion import worth_showing
from spikeguard_protocol import BatchDetail, Cause
from spikeguard_protocol.phrases import batches_phrase, cause_phrase, sure_phrase
from spikeguard_server.report.document import Block, Bullets, Paragraph
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.symptoms import lead_of
from spikeguard_server.report.wording import plural, word

CAUSES = ("Likely cause (", "The cause is not known")  # how a paragraph on the cause begins
MOST_REASONS = 3  # on the page; the appendix has all
MOST_OTHERS = 4
MOST_AGAINST = 2
MOST_DOCUMENTS = 8  # of a batch, and characters of the name of each
LONGEST_NAME = 120


def root_cause_of(facts: PostMortem) -> tuple[Block, ...]:
    """The cause in a sentence, what speaks for it, and what does not."""
    named, batches = cause_sentence(facts), facts.incident.onset_batches
    if batches is not None:
        named = f"{named} The onset trained on {batches_phrase(batches)}."
    return (Paragraph(named), *_evidence(facts), *_others(facts))


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


def because_of(facts: PostMortem) -> str:
    """The cause with the reason that speaks most for it."""
    said, likely = cause_sentence(facts), next(iter(facts.incident.causes), None)
    if likely is None or not likely.reasons or not diagnose(facts.incident).known:
        return said
    return f"{said.rstrip('.')}: {likely.reasons[0]}."


def _evidence(facts: PostMortem) -> tuple[Block, ...]:
    incident, items = facts.incident, list[str]()
    likely = next(iter(incident.causes), None)
    if likely is not None and diagnose(incident).known:
        items += [f"{reason[:1].upper()}{reason[1:]}." for reason in likely.reasons[:MOST_REASONS]]
        if likely.against:
            items.append(f"Against it: {'; '.join(likely.against[:MOST_AGAINST])}.")
    if of_data(facts):
        items += batch_sentences(facts.batch)[:1]
    items += _lead(facts)
    if incident.first_layer is not None and not _said(incident.first_layer.sentence, items):
        items.append(f"{incident.first_layer.told}.")
    if incident.recurred_batches is not None:
        items.append(f"It came back at {batches_phrase(incident.recurred_batches)}.")
    if incident.dropped:
        items.append("The agent kept the onset's update out of the weights.")
    if incident.stuck:
        items.append("It was stuck: update after update was dropped, the weights stood still.")
    return (Bullets(tuple(items)),) if items else ()


def _said(sentence: str, items: list[str]) -> bool:
    return any(sentence[1:] in item for item in items)


def of_data(facts: PostMortem) -> bool:
    """Whether the likeliest cause lies in the data, so that the batch is what to look at."""
    likely = next(iter(facts.incident.causes), None)
    return likely is not None and likely.cause in (Cause.BAD_BATCH, Cause.RARE_TOKENS)


def batch_sentences(batch: BatchDetail | None) -> list[str]:
    """What the onset's batch shows, and which documents lay in it; empty: unknown."""
    if batch is None:
        return []
    said = [one for one in (worst_sequence(batch), contrast(batch.histogram)) if one]
    found = [" ".join(f"{one}." for one in said)] if said else []
    if batch.names:
        shown = [name[:LONGEST_NAME] for name in batch.names[:MOST_DOCUMENTS]]
        more = len(batch.names) - len(shown) + batch.names_cut
        rest = f", and {more:,} more" if more > 0 else ""
        found.append(f"Its documents: {', '.join(shown)}{rest}.")
    return found


def batch_of(facts: PostMortem) -> tuple[Block, ...]:
    """The onset's batch, for the appendix, where the data is what is blamed."""
    said = batch_sentences(facts.batch) if of_data(facts) else []
    if facts.batch is None or not said:
        return ()
    head = f"Step {facts.batch.step:,}, rank {facts.batch.rank}."
    return (Paragraph(head), Bullets(tuple(said)))


def _others(facts: PostMortem) -> tuple[Block, ...]:
    """Causes that diagnosis found less likely, and would still show; where none is known, the
    sentence above names them."""
    if not diagnose(facts.incident).known:
        return ()
    others = [
        f"{cause_phrase(one.cause)} ({sure_phrase(one.confidence)})"
        for one in worth_showing(facts.incident.causes)[1:]
        if one.cause is not Cause.UNKNOWN
    ]
    return (Paragraph(f"Also possible: {'; '.join(others[:MOST_OTHERS])}."),) if others else ()


def _lead(facts: PostMortem) -> list[str]:
    """What moved ahead of the loss; of a loss that moved first the summary tells."""
    lead = lead_of(facts)
    if lead is None or (lead.steps is not None and lead.steps <= 0):
        return []
    name = word(lead.signal)
    first = f"{name[:1].upper()}{name[1:]} moved first, at step {lead.step:,}"
    if lead.steps is not None:
        return [f"{first}, {plural(lead.steps, 'step')} before the loss."]
    return [f"{first}; the loss {'rose later' if rose(facts.incident) else 'itself never moved'}."]
