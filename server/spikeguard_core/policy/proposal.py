"""From an incident to the command that an experienced on-call engineer would propose: the rules'
opinion, held against what a person already said and what the attempt can do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spikeguard_core.lifecycle.command_life import TAKEN_BACK, UNANSWERED, WAITING
from spikeguard_core.policy.order_limits import (
    out_of_reach_step,
    within_limits,
    within_reach,
)
from spikeguard_core.policy.remedies import Diagnosis
from spikeguard_core.policy.rules import RULES, Opinion
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import PastCommand, Situation
from spikeguard_core.policy.targeting import choose_target
from spikeguard_protocol import (
    Action,
    Answer,
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


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command worth a decision, or the reason why there is none."""

    action: Action | None
    reason: str
    expires_in_s: float  # from now
    expires_at_step: int | None  # void once this step has been trained
    cause: Diagnosis | None = None  # that the action follows from, if from one
    by_person: bool = False  # no policy approves it

    def replaces(self, action: Action, cause: str | None) -> bool:
        """Whether whoever was offered `action` for `cause` has to be asked anew."""
        return self.action is not None and (self.cause != cause or differs(action, self.action))


def propose(situation: Situation, policy: Policy) -> Proposal:
    """What to do about `situation.incident` now."""
    reachable, beyond = within_reach(situation)
    opinions = (rule(reachable, policy) for rule in RULES)
    opinion = next((opinion for opinion in opinions if opinion is not None), Opinion(None, ""))
    opinion = _within_capability(_unless_rejected(opinion, reachable, policy), reachable)
    opinion = _within_limits(opinion, situation, beyond)
    return _proposal(opinion, situation, policy)


def differs(old: Action, new: Action) -> bool:
    """Whether `new` is another offer than `old`: another verb or target, batches left out or a rate
    lowered where none was, or other batches.

    What was shown is done as it was shown, so that numbers alone make no other offer: how many
    batches, by how much and how long a rate is lowered.
    """
    if not isinstance(old, Rollback) or not isinstance(new, Rollback):
        return verb_of(old) is not verb_of(new)
    if (old.target, old.step) != (new.target, new.step):
        return True
    if (old.lr_factor is None) != (new.lr_factor is None) or old.apply != new.apply:
        return True
    if old.skip is None or new.skip is None:
        return old.skip != new.skip
    return old.skip.end <= new.skip.first or new.skip.end <= old.skip.first


def _proposal(opinion: Opinion, situation: Situation, policy: Policy) -> Proposal:
    steps = policy.expires_after_steps
    if isinstance(opinion.action, Watch):
        steps = opinion.action.steps
    if opinion.action is None:
        return Proposal(None, opinion.reason, policy.expires_in_s, None, opinion.cause)
    told = caveats(opinion.action, situation)
    reason = in_paragraphs(*paragraphs(opinion.reason), told)
    at_step = situation.step + steps
    if isinstance(opinion.action, Rollback):
        at_step = min(at_step, out_of_reach_step(opinion.action.step, situation) or at_step)
    return Proposal(
        opinion.action, reason, policy.expires_in_s, at_step, opinion.cause, opinion.by_person
    )


# --- what every rule's opinion has to pass ---


def _unless_rejected(opinion: Opinion, situation: Situation, policy: Policy) -> Opinion:
    """A no stands until something new is known, and silence for `ask_again_steps`: asking the same
    again and again teaches people to ignore us."""
    if opinion.action is None:
        return opinion
    last = _last_answered(situation, opinion)
    if last is None:
        return opinion
    again = (
        situation.step if last.decided_step is None else last.decided_step
    ) + policy.ask_again_steps
    rejected = last.state is CommandState.REJECTED
    if situation.step >= again and not (rejected and _refused_already(opinion, situation)):
        return opinion
    said = (
        f"was rejected; asked again from step {again} on, if something new is known then"
        if rejected
        else f"was proposed, nobody answered; asked again at step {again}"
    )
    return Opinion(None, f"A {last.verb} {said}. {opinion.reason}")


def _refused_already(opinion: Opinion, situation: Situation) -> bool:
    """Whether somebody said no to this offer for this cause, and since then the spike has not come
    back and no other signal has moved."""
    action, incident = opinion.action, situation.incident
    assert action is not None
    news = max(incident.newest_onset_step, *incident.first_moves.values(), 0)
    return any(
        past.state is CommandState.REJECTED
        and past.cause == opinion.cause
        and not differs(past.action, action)
        and (past.decided_step or 0) >= news
        for past in situation.of_incident
    )


def _within_capability(opinion: Opinion, situation: Situation) -> Opinion:
    if opinion.action is None or situation.can(verb_of(opinion.action)):
        return opinion
    verb = verb_of(opinion.action)
    return Opinion(None, f"{opinion.reason} This attempt cannot {verb}, so a person has to act.")


def _within_limits(opinion: Opinion, situation: Situation, beyond: str) -> Opinion:
    """What the job itself would refuse is not proposed to a person; `beyond`: of its targets."""
    if opinion.action is None:
        return opinion
    action, note = within_limits(opinion.action, situation)
    note += "" if isinstance(opinion.action, Watch) else beyond
    reason = in_paragraphs(*paragraphs(opinion.reason), note)
    return replace(opinion, action=action, reason=reason)


def _last_answered(situation: Situation, opinion: Opinion) -> PastCommand | None:
    """The newest command of its verb, if that was rejected, or expired as the same offer."""
    assert opinion.action is not None
    verb, undecided = verb_of(opinion.action), (TAKEN_BACK - UNANSWERED) | WAITING
    mine = (p for p in situation.of_incident if p.verb is verb)
    last = next((p for p in reversed([*mine]) if p.state not in undecided), None)
    if last is None or last.state is CommandState.REJECTED:
        return last
    same = last.cause == opinion.cause and not differs(last.action, opinion.action)
    return last if last.state in UNANSWERED and same else None


def caveats(action: Action, situation: Situation) -> str:
    """Sentences behind the reason for `action`; empty where there is nothing to say."""
    said = [_of_verb(action, situation), _instead(action, situation)]
    return " ".join(sentence for sentence in said if sentence)


def _of_verb(action: Action, situation: Situation) -> str:
    """What `action` loses in this loop."""
    ability = situation.ability(verb_of(action))
    if ability is None or ability.answer is not Answer.YES or not ability.remedy:
        return ""
    return f"Of this job: {_sentences(ability.reason, ability.cost, ability.remedy)}"


def _instead(action: Action, situation: Situation) -> str:
    """Why nothing goes back, and what a person can do in place of it."""
    ability = situation.ability(Verb.ROLLBACK)
    if situation.can(Verb.ROLLBACK) or ability is None or ability.answer is not Answer.NO:
        return ""
    why = f"A rollback cannot be carried out. {_sentences(ability.reason, ability.remedy)}"
    if isinstance(action, Rollback) or situation.incident.kind is Kind.RECOVERABLE:
        return why
    return f"{why} {_restart(action, situation)}".rstrip()


def _restart(action: Action, situation: Situation) -> str:
    on_disk = tuple(t for t in situation.targets if t.medium is Medium.DISK)
    choice = choose_target(replace(situation, targets=on_disk))
    if choice is None:
        return ""
    then = "then restart" if isinstance(action, Stop) else "restart"
    return f"Instead, {then} the job from {choice.reason}."


def _sentences(*parts: str) -> str:
    return " ".join(f"{part[:1].upper()}{part[1:].rstrip('.')}." for part in parts if part)
