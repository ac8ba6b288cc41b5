"""From facts to a document: the page that people sign, and the appendix that it rests on."""

from __future__ import annotations

from spikeguard_server.report.causes import root_cause_of
from spikeguard_server.report.cost import cost_blocks
from spikeguard_server.report.document import Bullets, Document, Picture, Section
from spikeguard_server.report.evidence import (
    causes_considered,
    classification_of,
    seen_before_and_after,
    signals_of,
)
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.followups import followups_of
from spikeguard_server.report.heading import heading_of
from spikeguard_server.report.narrative import happened, header_of, outcome_of, what_was_done
from spikeguard_server.report.plot_choice import caption_of
from spikeguard_server.report.record import (
    attempts_table,
    command_blocks,
    links_of,
    responses_of,
    timeline_of,
)
from spikeguard_server.report.wording import ENDINGS, SIGMA, time_of


def document_of(facts: PostMortem) -> Document:
    """The whole post-mortem."""
    incident = facts.incident
    where = f"at step {incident.onset_step:,}"
    return Document(
        title=f"{facts.id}: {heading_of(incident)} {where}, {ENDINGS[incident.outcome]}",
        header=header_of(facts),
        body=tuple(section for section in _body(facts) if section.blocks),
        appendix=tuple(section for section in _appendix(facts) if section.blocks),
        footer=(
            f"Written {time_of(facts.written_at)} UTC from the record of the incident. All times "
            f"are UTC; losses are nats per token; {SIGMA} is the robust standard deviation of the "
            "signal before the onset."
        ),
    )


def _body(facts: PostMortem) -> list[Section]:
    asked = followups_of(facts)
    followups = Bullets(asked) if asked else "Nothing on record asks for a follow-up."
    picture = [Picture(caption_of(facts))] if facts.curves else []
    return [
        Section("What happened", (" ".join(happened(facts)),)),
        Section("Root cause", (*root_cause_of(facts), *picture)),
        Section("What was done, and why", what_was_done(facts)),
        Section("Outcome", (outcome_of(facts),)),
        Section("Cost", cost_blocks(facts), beside=True),
        Section("Timeline", (timeline_of(facts),), beside=True),
        Section("Follow-ups", (followups,), beside=True),
        Section("Links", links_of(facts), beside=True),
    ]


def _appendix(facts: PostMortem) -> list[Section]:
    return [
        Section("Before, at and after the spike", seen_before_and_after(facts)),
        Section("Signals", signals_of(facts)),
        Section("Classification", classification_of(facts)),
        Section("Causes considered", causes_considered(facts)),
        Section("Commands", command_blocks(facts)),
        Section("What people said", responses_of(facts)),
        Section("Attempts", (attempts_table(facts.attempts),) if facts.attempts else ()),
        Section("Changes noted", (Bullets(facts.notes),) if facts.notes else ()),
    ]
