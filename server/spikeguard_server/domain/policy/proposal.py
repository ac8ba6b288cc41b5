"""From an incident to the command that an experienced on-call engineer would propose.

Law: pure. The rules decide; here their opinion is held against what a person already said and what
the attempt can do, and it is kept or renewed when the yes comes late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spikeguard_protocol import (
    Action,
    Answer,
    BatchRange,
    CommandState,
    Kind,
    Medium,
    Rollback,
    Stop,
    Verb,
    Watch,
    verb_of,
)
from spikeguard_protocol.phrases import in_paragraphs, paragraphs
from spikeguard_server.domain.lifecycle.command_life import TAKEN_BACK, WAITING
from spikeguard_server.domain.policy.order_limits import reach_note, within_limits, within_reach
from spikeguard_server.domain.policy.own_rules import by_own_rule
from spikeguard_server.domain.policy.rules import RULES, SETTLED, Opinion, Rule
from spikeguard_server.domain.policy.settings import Policy
from spikeguard_server.domain.policy.situation import PastCommand, Situation
from spikeguard_server.domain.policy.targeting import choose_target


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command worth a decision, or the reason why there is none."""

    action: Action | None
    reason: str
    expires_in_s: float  # from now
    expires_at_step: int | None  # void once this step has been trained
    cause: str = ""  # as the reason names it, where the action follows from one

    def explains_otherwise(self, reason: str) -> bool:
        """Whether it puts the same action down to another cause than `reason` does."""
        return self.cause not in reason


def propose(situation: Situation, policy: Policy) -> Proposal:
    """What to do about `situation.incident` now."""
    reachable = within_reach(situation)
    opinion = _by_own_rule(_asked(RULES, reachable, policy), reachable, policy)
    opinion = _within_capability(_unless_rejected(opinion, reachable, policy), reachable)
    opinion = _within_limits(opinion, situation, reachable)
    return _proposal(opinion, situation, policy)


def _asked(rules: Sequence[Rule], situation: Situation, policy: Policy) -> Opinion:
    opinions = (rule(situation, policy) for rule in rules)
    return next((opinion for opinion in opinions if opinion is not None), Opinion(None, ""))


def _by_own_rule(opinion: Opinion, situation: Situation, policy: Policy) -> Opinion:
    """The project's own wish, where nothing is in flight, being judged or closed."""
    if not policy.rules or _asked(SETTLED, situation, policy).reason:
        return opinion
    return Opinion(*by_own_rule(opinion.action, opinion.reason, situation, policy.rules))


def renew(approved: Action, situation: Situation, policy: Policy) -> Proposal:
    """The same decision taken anew, when a person says yes much later.

    Where what they saw is still what would be proposed, they get exactly that; else the proposal
    holds the action that takes its place, and approving has to name its revision.
    """
    fresh = propose(situation, policy)
    if fresh.action is None or differs(approved, fresh.action):
        return fresh
    return replace(fresh, action=approved)


def differs(old: Action, new: Action) -> bool:
    """Whether a person who decided about `old` has to decide again about `new`.

    The end of a skip moves with every batch that stands out; only a quarter more of it matters.
    """
    if not isinstance(old, Rollback) or not isinstance(new, Rollback):
        return old != new
    if replace(old, skip=None) != replace(new, skip=None):
        return True
    return _skips_differ(old.skip, new.skip)


def _skips_differ(old: BatchRange | None, new: BatchRange | None) -> bool:
    if old is None or new is None:
        return old != new
    return old.first != new.first or abs(new.end - old.end) > max(5, len(old) // 4)


def _proposal(opinion: Opinion, situation: Situation, policy: Policy) -> Proposal:
    steps = policy.expires_after_steps
    if isinstance(opinion.action, Watch):
        steps = opinion.action.steps
    if opinion.action is None:
        return Proposal(None, opinion.reason, policy.expires_in_s, None, opinion.cause)
    told = caveats(opinion.action, situation, policy)
    reason = in_paragraphs(*paragraphs(opinion.reason), told)
    at_step = situation.step + steps
    return Proposal(opinion.action, reason, policy.expires_in_s, at_step, opinion.cause)


# --- what every rule's opinion has to pass ---


def _unless_rejected(opinion: Opinion, situation: Situation, policy: Policy) -> Opinion:
    """A person's no is respected for a while; asking again every step teaches them to ignore us."""
    if opinion.action is None:
        return opinion
    last = _last_decided(situation, verb_of(opinion.action))
    if last is None or last.state is not CommandState.REJECTED:
        return opinion
    again = (
        situation.step if last.decided_step is None else last.decided_step
    ) + policy.ask_again_steps
    if situation.step >= again:
        return opinion
    return Opinion(
        None, f"A {last.verb} was rejected; asked again at step {again}. {opinion.reason}"
    )


def _within_capability(opinion: Opinion, situation: Situation) -> Opinion:
    if opinion.action is None or situation.can(verb_of(opinion.action)):
        return opinion
    verb = verb_of(opinion.action)
    return Opinion(None, f"{opinion.reason} This attempt cannot {verb}, so a person has to act.")


def _within_limits(opinion: Opinion, situation: Situation, reachable: Situation) -> Opinion:
    """What the job itself would refuse is not proposed to a person."""
    if opinion.action is None:
        return opinion
    limited = within_limits(opinion.action, situation)
    beyond = "" if isinstance(opinion.action, Watch) else reach_note(situation, reachable)
    reason = in_paragraphs(*paragraphs(opinion.reason), limited.note + beyond)
    return replace(opinion, action=limited.action, reason=reason)


def _last_decided(situation: Situation, verb: Verb) -> PastCommand | None:
    undecided = TAKEN_BACK | WAITING
    mine = (p for p in situation.of_incident if p.verb is verb)
    decided = [p for p in mine if p.state not in undecided]
    return decided[-1] if decided else None


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
