"""What a proposal has to say of the loop that it is made for: what cannot be done there, or only
with a loss, why, and what helps.

Invariants: pure. The action stays as it is; only its reason grows.
"""

from __future__ import annotations

from dataclasses import replace

from spikeguard_protocol import (
    Action,
    Answer,
    Kind,
    Medium,
    Rollback,
    Stop,
    Verb,
    verb_of,
)
from spikeguard_server.domain.policy.settings import Policy
from spikeguard_server.domain.policy.situation import Situation
from spikeguard_server.domain.policy.targeting import choose_target


def caveats(action: Action, situation: Situation, policy: Policy) -> str:
    """Sentences behind the reason for `action`; empty where there is nothing to say."""
    said = [_of_verb(action, situation), _instead(action, situation, policy)]
    return " ".join(sentence for sentence in said if sentence)


def _of_verb(action: Action, situation: Situation) -> str:
    """What `action` loses in this loop."""
    ability = situation.ability(verb_of(action))
    if ability is None or ability.answer is not Answer.YES or not ability.remedy:
        return ""
    return f"To know of this loop: {_sentences(ability.reason, ability.cost, ability.remedy)}"


def _instead(action: Action, situation: Situation, policy: Policy) -> str:
    """Why nothing goes back, and what a person can do in place of it."""
    ability = situation.ability(Verb.ROLLBACK)
    if situation.can(Verb.ROLLBACK) or ability is None or ability.answer is not Answer.NO:
        return ""
    why = f"A rollback cannot be carried out. {_sentences(ability.reason, ability.remedy)}"
    if isinstance(action, Rollback) or situation.incident.kind is Kind.RECOVERABLE:
        return why
    return f"{why} {_restart(action, situation, policy)}".rstrip()


def _restart(action: Action, situation: Situation, policy: Policy) -> str:
    on_disk = tuple(t for t in situation.targets if t.medium is Medium.DISK)
    choice = choose_target(replace(situation, targets=on_disk), policy)
    if choice is None:
        return ""
    then = "then restart" if isinstance(action, Stop) else "restart"
    return f"Instead, {then} the job from {choice.reason}."


def _sentences(*parts: str) -> str:
    return " ".join(f"{part[:1].upper()}{part[1:].rstrip('.')}." for part in parts if part)
