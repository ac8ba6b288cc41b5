"""What this incident teaches, by its cause and by where its time went.

Law: a lesson rests on a fact of this incident; there are at most three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spikeguard_protocol import Rollback
from spikeguard_server.domain.lifecycle.command_life import EXECUTED
from spikeguard_server.domain.policy.finding import diagnose
from spikeguard_server.domain.policy.remedies import Diagnosis
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.inaction import inaction_of
from spikeguard_server.report.symptoms import spent_by
from spikeguard_server.report.wording import duration, plural

BY_CAUSE: Final[Mapping[Diagnosis, str]] = {
    Diagnosis.BAD_BATCH: "Bad data is cheaper to keep out than to go back for: filter it where "
    "the mix is made.",
    Diagnosis.RARE_TOKENS: "Tokens that were hardly trained spike when they come in a crowd: "
    "spread such documents over the data order.",
    Diagnosis.STALE_SECOND_MOMENT: "Adam's second moment lagged behind the gradients: a smaller "
    "beta2 or update clipping bounds the step that it lets through.",
    Diagnosis.LR_TOO_HIGH: "A change of the learning rate is a change of production: look at the "
    "first steps after it before anybody leaves.",
    Diagnosis.LAYER_FAULT: "One layer failed before the model did: norms by layer name it in time.",
    Diagnosis.NON_FINITE_SOURCE: "A value that is not finite spreads in one step: keep such "
    "updates out of the weights.",
    Diagnosis.WEIGHT_CORRUPTION: "Weights changed without an update: no setting of the training "
    "prevents that, only checks of the hardware and close checkpoints.",
    Diagnosis.LOSS_SCALE_OVERFLOW: "fp16 had no loss scale that fits: bf16 needs none.",
    Diagnosis.STALLED_WEIGHTS: "Updates smaller than bf16 resolves are lost without a sound: keep "
    "master weights in fp32 or round stochastically.",
    Diagnosis.REPLICAS_APART: "Ranks drift apart without a sound: only comparing their weights "
    "shows it.",
}
WAITED_PART: Final = 0.5  # of the lost time, from which the wait for a decision is a lesson
NEAR_STEPS: Final = 50


def lessons_of(facts: PostMortem) -> tuple[str, ...]:
    """At most three, by cause first."""
    finding = diagnose(facts.incident, facts.policy)
    by_cause = BY_CAUSE.get(finding.remedy.diagnosis)
    said = [by_cause, _unknown(finding.known), _waited(facts), _came_back(facts), _near(facts)]
    return tuple(text for text in said if text)[:3]


def _unknown(known: bool) -> str | None:
    if known:
        return None
    return (
        "What was measured did not tell the cause: norms by layer, token statistics and the flight "
        "recorder would say more the next time."
    )


def _waited(facts: PostMortem) -> str | None:
    """Where most of what was lost passed before somebody decided."""
    again_s = spent_by(facts).again_s
    for command in facts.commands:
        if not isinstance(command.action, Rollback) or command.state not in EXECUTED:
            continue
        if command.decided_at is None or command.auto or not again_s:
            continue
        waited_s = (command.decided_at - command.proposed_at).total_seconds()
        if WAITED_PART * again_s <= waited_s <= again_s:
            return (
                f"{duration(again_s)} of training had to be done again, {duration(waited_s)} of it "
                "from while the proposal waited for a decision."
            )
    return None


def _came_back(facts: PostMortem) -> str | None:
    again = facts.incident.recurrences
    if not again:
        return None
    return f"The first remedy did not hold: it was there again {plural(again, 'time')} after one."


def _near(facts: PostMortem) -> str | None:
    """What made going back cheap, unless waiting would have cost no more."""
    gaps = [
        facts.incident.onset_step - c.action.step
        for c in facts.commands
        if isinstance(c.action, Rollback) and c.state in EXECUTED
    ]
    if not gaps or not 0 <= min(gaps) <= NEAR_STEPS or _healed_anyway(facts):
        return None
    return (
        f"What went well: a target {plural(min(gaps), 'step')} before the onset, so that little "
        "sound training was given up."
    )


def _healed_anyway(facts: PostMortem) -> bool:
    """Whether the branch that was undone was back on its trend when it was given up."""
    alone = inaction_of(facts)
    return alone.steps is not None and alone.steps == alone.least
