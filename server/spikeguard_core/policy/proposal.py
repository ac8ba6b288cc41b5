"""From an incident to the command that an experienced on-call engineer would propose: the rules'
opinion, held against what a person already said and what the attempt can do."""

from __future__ import annotations

from dataclasses import replace

from spikeguard_core.lifecycle.command_life import TAKEN_BACK, WAITING
from spikeguard_core.policy.orders import (
    losses_of,
    out_of_reach_step,
    within_limits,
    within_reach,
)
from spikeguard_core.policy.rules import RULES, Proposal
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import Situation, sentences
from spikeguard_core.policy.targeting import choose_target
from spikeguard_protocol import (
    Action,
    Answer,
    CommandState,
    Medium,
    Rollback,
    Verb,
    Watch,
    verb_of,
)
from spikeguard_protocol.phrases import in_paragraphs, paragraphs


def propose(situation: Situation, policy: Policy) -> Proposal:
    """What to do about `situation.incident` now."""
    reachable, beyond = within_reach(situation)
    asked = (rule(reachable, policy) for rule in RULES)
    proposal = next((one for one in asked if one is not None), Proposal(None, ""))
    if (wanted := proposal.action) is None:
        return proposal
    if said := _why_not_now(proposal, wanted, reachable, policy):
        return Proposal(None, said)
    action, note = within_limits(wanted, situation)
    note += "" if isinstance(wanted, Watch) else beyond
    at_step = situation.step + policy.expires_after_steps
    if isinstance(action, Watch):
        at_step = situation.step + action.steps
    elif isinstance(action, Rollback):
        at_step = min(at_step, out_of_reach_step(action.step, situation) or at_step)
    caveats = "" if action is None else _caveats(action, situation)
    reason = in_paragraphs(*paragraphs(proposal.reason), note, caveats)
    return replace(proposal, action=action, reason=reason, expires_at_step=at_step)


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


def _why_not_now(proposal: Proposal, action: Action, situation: Situation, policy: Policy) -> str:
    """Why it is not proposed; empty where it is. A no stands until something new is known, and
    silence for `ask_again_steps`: asking the same again and again teaches people to ignore us."""
    verb, undecided = verb_of(action), (TAKEN_BACK - {CommandState.EXPIRED}) | WAITING
    answered = [p for p in situation.of_incident if p.verb is verb and p.state not in undecided]
    same = [p for p in answered if p.cause == proposal.cause and not differs(p.action, action)]
    rejected = bool(answered) and answered[-1].state is CommandState.REJECTED
    if rejected or (same and same[-1] is answered[-1] and same[-1].state is CommandState.EXPIRED):
        decided = answered[-1].decided_step
        again = (situation.step if decided is None else decided) + policy.ask_again_steps
        said = f"was proposed, nobody answered; asked again at step {again}"
        if rejected:
            said = f"was rejected; asked again from step {again} on, if something new is known then"
        incident = situation.incident  # it coming back, or another signal that moves, is news
        news = max(incident.newest_onset_step, *incident.first_moves.values(), 0)
        noes = (p.decided_step or 0 for p in same if p.state is CommandState.REJECTED)
        if situation.step < again or any(step >= news for step in noes):
            return f"A {verb} {said}. {proposal.reason}"
    if situation.can(verb):
        return ""
    return f"{proposal.reason} This attempt cannot {verb}, so a person has to act."


def _caveats(action: Action, situation: Situation) -> str:
    """What `action` loses in this loop; why nothing goes back, and what a person can do instead."""
    verb = verb_of(action)
    mine = situation.ability(verb)
    said = [losses_of(verb, situation)] if mine is not None and mine.remedy else []
    back = situation.ability(Verb.ROLLBACK)
    if not situation.can(Verb.ROLLBACK) and back is not None and back.answer is Answer.NO:
        said.append(f"A rollback cannot be carried out. {sentences(back.reason, back.remedy)}")
        on_disk = tuple(t for t in situation.targets if t.medium is Medium.DISK)
        choice = choose_target(replace(situation, targets=on_disk))
        if choice is not None:
            said.append(f"Instead, restart the job from {choice[1]}.")
    return " ".join(filter(None, said))
